"""Guards: check whether three tensors match three others in everything that a plan depends on except addresses, in
requires_grad, and in the modes that change dispatch. Uses the tensor guards of torch.compile, which are not a public
API: if this PyTorch has none, or they miss a difference, there are no guards and calls are looked up by key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Guard = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]


def _new_guard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Guard:
    guards: Any = torch._C._dynamo.guards
    return guards.TensorGuards(q, k, v, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def _sees_every_difference(new_guard: Any) -> bool:
    def like(**changed: Any) -> torch.Tensor:
        return torch.empty(**{"size": (2, 3, 4, 8), **changed})

    base = [like() for _ in range(3)]
    other = [
        like(size=(2, 3, 5, 8)), like(size=(2, 3, 4, 8, 1)), like().transpose(1, 2).contiguous().transpose(1, 2),
        like(dtype=torch.float16), like(device="meta"), like(requires_grad=True), torch.nn.Parameter(like()),
    ]  # fmt: skip
    guard = new_guard(*base)
    if not guard(*[like() for _ in range(3)]):
        return False
    return not any(guard(*base[:i], tensor, *base[i + 1 :]) for tensor in other for i in range(3))


def _working_guard() -> Callable[..., Guard] | None:
    try:
        return _new_guard if _sees_every_difference(_new_guard) else None
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


_make = _working_guard()


def guard_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Guard | None:
    """Holds no reference to the tensors."""
    return None if _make is None else _make(q, k, v)
