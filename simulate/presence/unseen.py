"""Keeping PyTorch's compiler out of what a simulation does with an operation, in a fraction of the time."""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

from torch._C._dynamo import eval_frame

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., Any]")


def unseen(kept_out: _F) -> _F:
    """A method that runs without dynamo's wrapper wherever dynamo looks at nothing.

    PyTorch wraps ``__torch_dispatch__`` so that dynamo compiles none of it, which takes longer than detaching a tensor.
    The wrapper is needed only while dynamo looks at frames, as operators such as ``torch.cond`` have it do.

    Args:
        kept_out: the method in PyTorch's wrapper.

    Returns:
        A method whose own frame dynamo passes over.
    """
    plain: Any = getattr(kept_out, "__wrapped__", None)
    if plain is None:  # PyTorch 2.8 has no wrapper
        return kept_out
    looking = eval_frame.get_eval_frame_callback

    def dispatched(*args: Any, **kwargs: Any) -> Any:
        return (plain if looking() is None else kept_out)(*args, **kwargs)

    skip, otherwise = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT  # noqa: SLF001  the only access there is
    strategy = eval_frame._FrameExecStrategy(skip, otherwise)  # noqa: SLF001  as above
    eval_frame.set_code_exec_strategy(dispatched.__code__, strategy)
    return update_wrapper(dispatched, kept_out)  # type: ignore[return-value]
