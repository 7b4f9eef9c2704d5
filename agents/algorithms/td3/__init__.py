"""TD3: twin delayed deep deterministic policy gradients."""
