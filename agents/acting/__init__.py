"""A policy that acts: quantized after training; outside of a run, by engines from packed weights; files for elsewhere."""
