"""The replay of rows: planes of 0 and 1 kept as bytes give the batches that numbers give."""

import io

import pytest
import torch

from roundoff.agents.experience.replay import Replay

CPU = torch.device("cpu")


def filled(dtype, *, planes, count=30, capacity=20):
    replay = Replay(capacity, 6, 3, dtype=dtype, device=CPU, planes=planes)
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        before, after = torch.randint(2, (2, 6), generator=generator)
        action, outcome = torch.randn(3, generator=generator), torch.randn(2, generator=generator)
        replay.add(torch.cat((before, action, after, outcome)).to(dtype))
    return replay


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_planes_take_less_and_give_the_same(dtype):
    plain, packed = (filled(dtype, planes=planes) for planes in (False, True))
    a, b = (replay.sample(50, torch.Generator().manual_seed(1)) for replay in (plain, packed))
    assert torch.equal(a.rows, b.rows)
    assert b.rows.dtype == dtype
    for name in ("observations", "observations_and_actions", "next_observations", "rewards", "discounts"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    assert packed.planes.nbytes + packed.rows.nbytes == 20 * (12 + 5 * dtype.itemsize)


def test_planes_are_restored():
    file = io.BytesIO()
    torch.save(filled(torch.float32, planes=True, count=13).state_dict(), file)
    file.seek(0)
    restored = Replay(20, 6, 3, dtype=torch.float32, device=CPU, planes=True)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert len(restored) == 13
    expected = filled(torch.float32, planes=False, count=13)
    index = torch.arange(13)
    assert torch.equal(restored.take(index).rows, expected.take(index).rows)
