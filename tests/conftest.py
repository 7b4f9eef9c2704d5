"""Settings of these tests: no test asserts a time, so Hypothesis has no deadlines either."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
