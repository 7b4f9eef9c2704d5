"""Which arithmetic where: policies, their rules, and the places that rules name."""
