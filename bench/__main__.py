"""``python -m bench``: every measurement, on one thread."""

import torch

from bench import accumulation, families, formats, pixels, sampler, simulate, store, sweeps, update

torch.set_num_threads(1)
formats.main()
families.main()
update.main()
pixels.main()
simulate.main()
accumulation.main()
sampler.main()
store.main()
sweeps.main()
