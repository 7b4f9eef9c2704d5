"""``python -m bench``: every measurement, on one thread."""

import torch

from bench import families, rounding, update

torch.set_num_threads(1)
rounding.main()
families.main()
update.main()
