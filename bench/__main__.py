"""``python -m bench``: every measurement, on one thread."""

import torch

from bench import families, formats, update

torch.set_num_threads(1)
formats.main()
families.main()
update.main()
