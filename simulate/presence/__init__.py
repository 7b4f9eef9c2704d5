"""The places where a simulation is at work: threads, other modes, the process, the step it is at."""
