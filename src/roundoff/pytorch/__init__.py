"""What depends on the version of PyTorch: the versions that were checked, and the names in it that are not public."""
