"""All that depends on the version of PyTorch: checked versions, and uses of private names."""
