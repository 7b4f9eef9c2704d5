"""What operations are given: weights, activations, gradients and inputs told apart, and rounded before they run."""
