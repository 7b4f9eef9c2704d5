"""Several learners of one run, each a process with separate samples."""
