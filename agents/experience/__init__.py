"""What environments give: rounded on its way in, kept, sampled and augmented."""
