"""The folder of a sweep: its files, the leases on its runs, and its status."""
