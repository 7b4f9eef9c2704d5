"""Random shifts of training images, and the conversion of images from bytes to a format."""

from __future__ import annotations

import torch

from ...formats import Format, round


def random_shift(images: torch.Tensor, most: int, generator: torch.Generator) -> torch.Tensor:
    """Shifts each image by up to ``most`` pixels in both directions; pixels from outside repeat the border.

    It equals padding by ``most``, repeating the border, and cropping a random part of the old size. The images of one
    stack (the channels) are shifted alike, the stacks of the batch independently.

    Args:
        images: (n, channels, height, width), any type.
        most: >= 0.
        generator: a generator of the images' device.

    Returns:
        The shifted images, with the shape and type of ``images``.

    Source:
        Kostrikov et al., "Image Augmentation Is All You Need", Section 3.1: shifts of +-4 pixels.
    """
    n, channels, height, width = images.shape
    shifts = torch.randint(-most, most + 1, (n, 2, 1), generator=generator, device=images.device)
    rows = (torch.arange(height, device=images.device) + shifts[:, 0]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=images.device) + shifts[:, 1]).clamp_(0, width - 1)
    pixels = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, height * width)
    flat = images.reshape(n, channels, height * width)
    return flat.gather(2, pixels.expand(-1, channels, -1)).view_as(images)


def images_to_format(images: torch.Tensor, format: Format, dtype: torch.dtype) -> torch.Tensor:
    """Converts bytes to numbers of the format in [0, 1]: byte / 255, rounded once, to nearest.

    Args:
        images: uint8, any shape.
        format: the format.
        dtype: the dtype of the result: the format's carrier, or PyTorch's own type for the format.
    """
    return round(images.to(format.carrier).div_(255), format).to(dtype)
