"""``python -m bench``: every measurement, on one thread."""

import torch

from bench import rounding, update

torch.set_num_threads(1)
rounding.main()
update.main()
