"""Settings of these tests."""

from hypothesis import Phase, settings

# No test asserts a time, so Hypothesis has no deadlines either. When a test fails, it does not explain which parts of
# the example matter: it traces every line for that, which costs minutes.
settings.register_profile("ours", deadline=None, phases=[phase for phase in Phase if phase != Phase.explain])
settings.load_profile("ours")
