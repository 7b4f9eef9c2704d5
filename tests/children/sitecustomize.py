"""Settings of each Python that tests start, and of the processes of tests themselves: ``conftest.py`` adds this folder.

Most of them import PyTorch and do little else. To look for garbage among what is imported takes a third of their time.
"""

import atexit
import gc

gc.set_threshold(50_000, 10, 10)
atexit.register(gc.freeze)  # or Python would collect several times at its end
atexit.register(gc.collect)  # first
