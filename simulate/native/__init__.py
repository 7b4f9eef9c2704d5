"""Plain operations of a simulation, run and rounded by compiled C++ instead of Python, with the same bits."""
