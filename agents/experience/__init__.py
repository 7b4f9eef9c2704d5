"""Experience from environments: rounded on its way in, stored, sampled and augmented."""
