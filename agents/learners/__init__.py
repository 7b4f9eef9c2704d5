"""Several learners of one run, each a process with samples of its own."""
