"""flash-attn's flash_attn_combine, on the operator torch.ops.headrace.merge_states."""

from __future__ import annotations

from typing import Optional

import torch

from .. import _plans, _structs
from .._merge import merge, unstacked
from ._eager import _DTYPES, _raw_stream
from ._tensors import check_tensors, refuse_opaque

_library = torch.library.Library("headrace", "FRAGMENT")
_library.define(
    "merge_states(Tensor outs, Tensor lses, Tensor(a!) out, Tensor(b!) lse) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)

_MAX_STATES = 128  # of one call of the library


def _view(tensor: torch.Tensor) -> _plans.View:
    device_type = _structs.CUDA if tensor.is_cuda else _structs.CPU
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return _plans.View(
        tensor.data_ptr(), _DTYPES[tensor.dtype], device_type, tensor.device.index or 0, shape, strides
    )


def _merge_states(outs: torch.Tensor, lses: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
    refuse_opaque(("outs", "lses", "out", "lse"), (outs, lses, out, lse))
    stream = _raw_stream(outs.device.index) if outs.is_cuda else None
    merge(unstacked("outs", _view(outs)), unstacked("lses", _view(lses)), _view(out), _view(lse), stream)


for _key in ("CPU", "CUDA"):
    _library.impl("merge_states", _merge_states, _key)
torch.library.register_fake("headrace::merge_states", lambda *arguments: None, lib=_library)


def flash_attn_combine(
    out_partial: torch.Tensor,
    lse_partial: torch.Tensor,
    out: Optional[torch.Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """flash_attn_interface.flash_attn_combine: merges attention over disjoint keys, or splits of the keys, into
    attention over all of them. The sums run in the order of the splits, in float32.

    Args:
        out_partial: [num_splits, batch, seqlen, num_heads, head_dim_v] or [num_splits, total, num_heads, head_dim_v];
            float32, float16 or bfloat16, any strides. More than 128 splits are merged in groups of 128.
        lse_partial: float32 [num_splits, batch, seqlen, num_heads] or [num_splits, total, num_heads], natural
            logarithm; a split with -inf saw no key of the row and is not read.
        out: the result goes there; default: a new tensor.
        out_dtype: dtype of a new tensor; default: that of out_partial.

    Returns:
        (out, lse): [batch, seqlen, num_heads, head_dim_v] and float32 [batch, seqlen, num_heads]; 0 and -inf for a row
        without keys.

    Raises:
        ValueError, NotImplementedError, MemoryError, RuntimeError: as attention(). There is no backward.
    """
    check_tensors(("out_partial", "lse_partial", "out"), (out_partial, lse_partial, out), 2)
    shape, dtype = tuple(out_partial.shape), out_partial.dtype
    if len(shape) not in (4, 5):
        raise ValueError(f"out_partial.shape={shape}: must be [num_splits, (batch,) seqlen, num_heads, head_dim_v]")
    if tuple(lse_partial.shape) != shape[:-1]:
        raise ValueError(
            f"lse_partial.shape={tuple(lse_partial.shape)}: must be {shape[:-1]}, as out_partial without head_dim_v"
        )
    for name, tensor in (("out_partial", out_partial), ("lse_partial", lse_partial), ("out", out)):
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(f"{name} requires a gradient: there is no backward; pass {name}.detach()")
        if tensor is not None and tensor.dtype not in _DTYPES:
            raise ValueError(f"{name}.dtype={tensor.dtype}: must be float32, float16 or bfloat16; convert {name}")
    if out is not None and out_dtype is not None and out.dtype != out_dtype:
        raise ValueError(f"out_dtype={out_dtype}: must be that of out, {out.dtype}; leave it out")
    if shape[0] > _MAX_STATES:
        groups = zip(out_partial.split(_MAX_STATES), lse_partial.split(_MAX_STATES))
        merged = [flash_attn_combine(*group, out_dtype=torch.float32) for group in groups]
        out_partial, lse_partial = (torch.stack(x) for x in zip(*merged))
        out_dtype = out_dtype or dtype
    if out is None:
        out = torch.empty(shape[1:], dtype=out_dtype or out_partial.dtype, device=out_partial.device)
    heads_first = (*shape[1:-3], shape[-2], shape[-3])
    lse = torch.empty(heads_first, dtype=torch.float32, device=out_partial.device)
    torch.ops.headrace.merge_states(out_partial, lse_partial.transpose(-1, -2), out, lse)
    return out, lse.transpose(-1, -2)
