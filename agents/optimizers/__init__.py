"""Adam and hAdam, loss scales, compensated sums and averages: how parameters move in low precision."""
