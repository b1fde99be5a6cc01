"""The operator torch.ops.headrace.kv_append: rotates q and k, and writes k and v to the slots of a cache."""

from __future__ import annotations

import ctypes
from typing import Optional

import torch

from .. import _structs
from .._library import LIBRARY, check
from ._eager import _DTYPES, _raw_stream
from ._tensors import refuse_opaque

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_NAMES = _structs.KV_APPEND_NAMES

_library = torch.library.Library("headrace", "FRAGMENT")
_library.define(
    "kv_append(Tensor? k, Tensor? v, Tensor(a!)? k_pages, Tensor(b!)? v_pages, Tensor? slot_mapping, Tensor? q, "
    "Tensor(c!)? q_out, Tensor? positions, Tensor? cos, Tensor? sin, bool interleaved) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _options(layout: int | None) -> _structs.KvAppendOptions:
    options = _structs.KvAppendOptions()
    check(LIBRARY.headrace_kv_append_options_init_sized(ctypes.addressof(options), ctypes.sizeof(options)))
    if layout is not None:
        rope = _structs.RopeOptions()
        check(LIBRARY.headrace_rope_options_init_sized(ctypes.addressof(rope), ctypes.sizeof(rope)))
        rope.layout = layout
        options.rope = ctypes.addressof(rope)
        options.keep = rope  # keeps the struct of the pointer alive
    return options


_PLAIN, _INTERLEAVED, _HALVES = map(_options, (None, _structs.ROPE_INTERLEAVED, _structs.ROPE_HALVES))


def _pack(packed: _structs.Tensor, tensor: torch.Tensor) -> None:
    packed.data = tensor.data_ptr()
    packed.dtype = _structs.I64 if tensor.dtype == torch.int64 else _DTYPES[tensor.dtype]
    packed.device_type = _structs.CUDA if tensor.is_cuda else _structs.CPU
    packed.device_id = tensor.device.index or 0
    packed.rank = tensor.dim()
    packed.shape[: packed.rank] = tensor.shape
    packed.strides[: packed.rank] = tensor.stride()


def _kv_append(*arguments: Optional[torch.Tensor]) -> None:
    tensors, interleaved = arguments[:-1], arguments[-1]
    refuse_opaque(_NAMES, tensors)
    packed = _structs.KvAppendTensors(ctypes.sizeof(_structs.KvAppendTensors))
    device = None
    for name, tensor in zip(_NAMES, tensors):
        if tensor is not None:
            _pack(getattr(packed, name), tensor)
            device = tensor.device
    options = _PLAIN if packed.cos.rank == 0 else _INTERLEAVED if interleaved else _HALVES
    stream = _raw_stream(device.index) if device is not None and device.type == "cuda" else None
    check(LIBRARY.headrace_kv_append(ctypes.addressof(packed), ctypes.addressof(options), stream))


for _key in ("CPU", "CUDA"):
    _library.impl("kv_append", _kv_append, _key)
torch.library.register_fake("headrace::kv_append", lambda *arguments: None, lib=_library)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """[batch, seqlen, heads, dim] as [tokens, heads, dim], the last axis without gaps."""
    x = x.flatten(0, 1)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def rotated(
    q: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """q [batch, seqlen, heads, dim], its first dims rotated by the angles of `positions` [batch, seqlen]."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    rows = positions.flatten().to(torch.int32)
    torch.ops.headrace.kv_append(
        None, None, None, None, None, _rows(q), out.flatten(0, 1), rows, cos, sin, interleaved
    )
    return out


def append(
    k: torch.Tensor,
    v: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    interleaved: bool,
) -> None:
    """Writes k and v [batch, seqlen, heads, dim] to `slots` [batch, seqlen], k rotated if there are positions."""
    rows = None if positions is None else positions.flatten().to(torch.int32)
    torch.ops.headrace.kv_append(
        _rows(k), _rows(v), k_pages, v_pages, slots.flatten(), None, None, rows, cos, sin, interleaved
    )
