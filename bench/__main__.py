"""``python -m bench``: every measurement, on one thread."""

import torch

from bench import (
    accumulation,
    acting,
    adapters,
    compiled,
    digits,
    eager,
    families,
    folders,
    formats,
    language,
    launches,
    native,
    pixels,
    policy_gradient,
    population,
    products,
    programs,
    q_learning,
    sampling,
    simulate,
    store,
    sweeps,
    table,
    update,
    what_runs,
)

torch.set_num_threads(1)
formats.main()
families.main()
launches.main()
native.main()
language.main()
eager.main()
update.main()
compiled.main()
digits.main()
policy_gradient.main()
population.main()
products.main()
pixels.main()
adapters.main()
q_learning.main()
acting.main()
simulate.main()
accumulation.main()
sampling.main()
store.main()
sweeps.main()
folders.main()
programs.main()
table.main()
what_runs.main()
