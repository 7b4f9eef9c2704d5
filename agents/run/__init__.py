"""One run: its loop, and the files that it leaves."""
