"""What each of two ranks does, one of them in a process that was spawned: it learns in C++ and through Python."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from processes import PATIENCE

import roundoff
from roundoff.simulate.dispatch.simulation import Simulation
from roundoff.simulate.native import library

dist = torch.distributed
WAYS = "10"


def learned(rank: int) -> list[torch.Tensor]:
    """The parameters of a network that two ranks have taught for three steps."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    net = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, eps=1e-3)
    x = torch.linspace(-1, 1, 24).view(6, 4) * (0.7 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        (net(x) - 0.3).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def rank_of_two(rank: int, store: str) -> list[dict[str, Any]]:
    """What a rank has learned in C++ and through Python, with its audits, and how many operations came to Python."""
    dispatch, count = Simulation.__torch_dispatch__, [0]

    def counting(self, func, types, args=(), kwargs=None):
        count[0] += 1
        return dispatch(self, func, types, args, kwargs)

    before = os.environ.get(library.VARIABLE)
    patience = timedelta(seconds=PATIENCE)  # the other rank imports PyTorch first
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=patience)
    found = []
    Simulation.__torch_dispatch__ = counting
    try:
        for asked in WAYS:
            os.environ[library.VARIABLE] = asked
            count[0] = 0
            with roundoff.simulate("e5m6") as simulation:
                parameters = learned(rank)
            audit = simulation.audit().table.to_dict("list")
            found.append({"parameters": parameters, "audit": audit, "through Python": count[0]})
    finally:
        Simulation.__torch_dispatch__ = dispatch
        os.environ.pop(library.VARIABLE)
        if before is not None:
            os.environ[library.VARIABLE] = before
        dist.destroy_process_group()
    return found


def spawned(store: str, into: str) -> None:
    """The second rank, which writes what it has found to a file."""
    torch.set_num_threads(1)
    torch.save(rank_of_two(1, store), into)
