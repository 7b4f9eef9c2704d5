"""What formats share whose scales follow from the data: choosing them, and blocks with a power of two."""
