"""Whether tensors hold the same bits, and numbers that try programs hard."""

import torch


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in shape, dtype and every bit, except that any NaN equals any NaN."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a.is_complex():
        a, b = (torch.view_as_real(x.resolve_conj()) for x in (a, b))
    if not a.is_floating_point():
        return torch.equal(a, b)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
    a, b = a.resolve_neg().contiguous(), b.resolve_neg().contiguous()
    return bool(((a.view(integer) == b.view(integer)) | (a.isnan() & b.isnan())).all())


def numbers(seed: int, *shape: int) -> torch.Tensor:
    """Float32 numbers of all magnitudes, and special ones where there is room for them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x *= torch.exp2(torch.randint(-30, 16, shape, generator=generator).float())
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -3e38, 65520.0])
    if x.numel() >= len(special):
        x.view(-1)[torch.randperm(x.numel(), generator=generator)[: len(special)]] = special
    return x
