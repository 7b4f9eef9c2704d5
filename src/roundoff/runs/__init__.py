"""The folder of a run (docs/running-sweeps.md lists its files), with one writer and one reader for all runs."""
