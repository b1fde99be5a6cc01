"""Attention under the transforms of torch.func: grad, vjp, jacrev, vmap and what is made of them.

They want an autograd.Function with setup_context() and a rule for vmap. The operators' own are slower to pass than
_backward.py's, and do not know the transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _over_samples(function: Callable[..., tuple], info: Any, in_dims: tuple, arguments: tuple) -> tuple[tuple, tuple]:
    """vmap's rule: one call for each sample."""
    results = [
        function(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


def transformable(operator: Any, save: Any, differentiate: Any) -> Any:
    """apply() of a Function that calls `operator` beneath all transforms; `save` is its setup_context() and
    `differentiate` its backward()."""

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
