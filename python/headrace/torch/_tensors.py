"""Checks of tensor arguments: their values must be those in their memory."""

from __future__ import annotations

from typing import Any

import torch

PLAIN: frozenset[type] = frozenset((torch.Tensor, torch.nn.Parameter))
PLAIN_OR_NONE: frozenset[type] = PLAIN | {type(None)}


def _holds_its_values(cls: type[torch.Tensor]) -> bool:
    """Parameters, Buffers and other subclasses that override neither of PyTorch's hooks behave like plain tensors. A
    class that overrides a hook may compute its values on demand (CausalBias, whose memory is never written) or store
    them elsewhere (DTensor), and cannot be told from one that only observes."""
    function: Any = cls.__torch_function__
    is_default = function is torch._C._disabled_torch_function_impl or (
        getattr(function, "__func__", None) is torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    )
    return is_default and cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def refuse_opaque(names: tuple[str, ...], tensors: tuple[Any, ...]) -> None:
    """Refuses tensors with hooks. Called before memory access, after the hooks had the chance to unwrap them."""
    for name, tensor in zip(names, tensors):
        cls = type(tensor)
        if cls not in PLAIN_OR_NONE and not _holds_its_values(cls):
            raise TypeError(
                f"{name} is a {cls.__module__}.{cls.__name__}, which overrides __torch_function__ or "
                "__torch_dispatch__: must be a tensor whose values are those in its memory; pass such a tensor, or "
                f"{name}.as_subclass(torch.Tensor) if they are (causal biases: causal, or attn_mask of "
                "scaled_dot_product_attention)"
            )


def check_tensors(names: tuple[str, ...], tensors: tuple[Any, ...], num_required: int) -> None:
    """Requires each to be a tensor or, after the first num_required, None; and none to be nested."""
    for i, (name, tensor) in enumerate(zip(names, tensors)):
        if tensor is None and i >= num_required:
            continue
        if not isinstance(tensor, torch.Tensor):
            cls = type(tensor)
            raise TypeError(
                f"{name} is a {cls.__module__}.{cls.__name__}: must be a torch.Tensor; pass torch.as_tensor({name}), "
                "or pass only arrays to headrace.attention()"
            )
        if tensor.is_nested:
            raise NotImplementedError(
                f"{name} is a nested tensor: only scaled_dot_product_attention takes those (layout=torch.jagged); call "
                f"that, or pass {name}.values() and its offsets as cu_seqlens"
            )
