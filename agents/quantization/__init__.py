"""How a policy acts in another arithmetic than it was trained in."""
