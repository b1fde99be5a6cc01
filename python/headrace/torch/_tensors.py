"""What a tensor argument may be: something whose values are what its memory holds."""

from __future__ import annotations

from typing import Any

import torch

PLAIN: frozenset[type] = frozenset((torch.Tensor, torch.nn.Parameter))
PLAIN_OR_NONE: frozenset[type] = PLAIN | {type(None)}


def _holds_its_values(cls: type[torch.Tensor]) -> bool:
    """Parameters, Buffers and other subclasses that override neither of PyTorch's hooks mean what a tensor means. One
    that overrides a hook may make its values when they are asked for (CausalBias, whose memory is never written) or
    keep them elsewhere (DTensor), and nothing tells it from one that only watches."""
    function: Any = cls.__torch_function__
    is_default = function is torch._C._disabled_torch_function_impl or (
        getattr(function, "__func__", None) is torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    )
    return is_default and cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def refuse_opaque(names: tuple[str, ...], tensors: tuple[Any, ...]) -> None:
    """Before memory is read or written: tensors of classes with hooks had their chance to unwrap themselves."""
    for name, tensor in zip(names, tensors):
        cls = type(tensor)
        if cls not in PLAIN_OR_NONE and not _holds_its_values(cls):
            raise TypeError(
                f"{name} is a {cls.__module__}.{cls.__name__}, which overrides __torch_function__ or "
                "__torch_dispatch__: must be a tensor whose values are those in its memory; pass one, "
                f"{name}.as_subclass(torch.Tensor) where they are (causal biases: causal, or attn_mask of "
                "scaled_dot_product_attention)"
            )


def check_tensors(names: tuple[str, ...], tensors: tuple[Any, ...], num_required: int) -> None:
    """That each is a tensor or, behind those that are required, None; and that none is nested."""
    for i, (name, tensor) in enumerate(zip(names, tensors)):
        if tensor is None and i >= num_required:
            continue
        if not isinstance(tensor, torch.Tensor):
            cls = type(tensor)
            raise TypeError(
                f"{name} is a {cls.__module__}.{cls.__name__}: must be a torch.Tensor; pass torch.as_tensor({name}), "
                "or arrays alone to headrace.attention()"
            )
        if tensor.is_nested:
            raise NotImplementedError(
                f"{name} is a nested tensor: only scaled_dot_product_attention takes them (layout=torch.jagged); call "
                f"that, or pass {name}.values() and its offsets as cu_seqlens"
            )
