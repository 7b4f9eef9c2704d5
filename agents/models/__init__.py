"""Networks and distributions, as functions of flat parameters."""
