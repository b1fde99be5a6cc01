"""Attention under the transforms of torch.func: grad, vjp, jacrev, vmap and their combinations.

The transforms need an autograd.Function with setup_context() and a vmap rule. The autograd formulas registered with the
operators do not support the transforms, and the functions of _backward.py are for plain eager calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _over_samples(function: Callable[..., tuple], info: Any, in_dims: tuple, arguments: tuple) -> tuple[tuple, tuple]:
    """The vmap rule: one call per sample."""
    results = [
        function(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


def transformable(operator: Any, save: Any, differentiate: Any) -> Any:
    """apply() of a Function that calls `operator` below all transforms, with `save` as setup_context() and
    `differentiate` as backward()."""

    class Transformable(torch.autograd.Function):
        setup_context = staticmethod(save)
        backward = staticmethod(differentiate)

        @staticmethod
        def forward(*arguments: Any) -> Any:
            return operator(*arguments)

        @staticmethod
        def vmap(info: Any, in_dims: tuple, *arguments: Any) -> tuple[tuple, tuple]:
            return _over_samples(Transformable.apply, info, in_dims, arguments)

    return Transformable.apply
