"""merge_states on arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from . import _plans, _structs, _views
from ._library import LIBRARY, check
from ._plans import View
from ._softmax import _output, _stream_of


def pack_states(name: str, views: Sequence[View]) -> ctypes.Array[_structs.Tensor]:
    packed = (_structs.Tensor * len(views))()
    for i, view in enumerate(views):
        _plans.pack_view(packed[i], f"{name}[{i}]", view)
    return packed


def unstacked(name: str, view: View) -> list[View]:
    """The views along axis 0."""
    if not view.shape:
        raise ValueError(f"{name} has no axes: must be [num_states, ...]; pass a list of arrays, or stack them")
    step = view.strides[0] * _structs.DTYPE_BYTES[view.dtype]
    return [
        view._replace(data=view.data + i * step if view.data else 0, shape=view.shape[1:], strides=view.strides[1:])
        for i in range(view.shape[0])
    ]


def merge(
    outs: Sequence[View], lses: Sequence[View], out: View, lse: View | None, stream: int | None
) -> None:
    if len(outs) != len(lses):
        raise ValueError(f"lses has {len(lses)} states: must have {len(outs)}, as outs; pass the lse of every state")
    packed_outs, packed_lses = pack_states("outs", outs), pack_states("lses", lses)
    tensors = _structs.MergeStatesTensors(ctypes.sizeof(_structs.MergeStatesTensors), len(outs))
    tensors.outs, tensors.lses = ctypes.addressof(packed_outs), ctypes.addressof(packed_lses)
    _plans.pack_view(tensors.out, "out", out)
    if lse is not None:
        _plans.pack_view(tensors.lse, "lse", lse)
    check(LIBRARY.headrace_merge_states(ctypes.addressof(tensors), stream))


def merge_states(
    outs: Any, lses: Any, *, out: Any = None, lse: Any = None, stream: int | None = None
) -> tuple[Any, Any]:
    """Merges attention over disjoint keys into attention over all of them: sum(exp(lse_i) * out_i) / sum(exp(lse_i)),
    and the lse log(sum(exp(lse_i))).

    The sums run in the order of the states, in float32; a state with an lse of -inf saw no key and is not read. Arrays
    as in softmax(); nothing is copied. Source: Dao et al., "Flash-Decoding", 2023.

    Args:
        outs: 1 to 128 arrays in a list or tuple, or stacked along axis 0: [batch, seqlen, num_heads, head_dim_v] or
            [total, num_heads, head_dim_v] each, of one dtype (f32, f16 or bf16) and of equal strides.
        lses: the same number of f32 arrays, as attention(return_lse=True) returns them: [batch, num_heads, seqlen] or
            [num_heads, total] each.
        out: output array, f32, f16 or bf16, shape of a state; may be one of outs. Default: a new NumPy or CuPy array
            of the dtype of outs.
        lse: output array, f32; may be one of lses. Default: a new array.
        stream: as in softmax().

    Returns:
        (out, lse). A row that no state has keys for is 0 and -inf.

    Raises:
        As softmax().
    """
    parts: dict[str, list[Any]] = {}
    views: dict[str, list[View]] = {}
    for name, given in (("outs", outs), ("lses", lses)):
        parts[name] = list(given) if isinstance(given, (list, tuple)) else [given]
        if not parts[name]:
            raise ValueError(f"{name} is empty: must have 1 state or more; pass the states to merge")
    first = parts["outs"][0]
    stream = _stream_of(first, stream)
    borrowed = []
    for name, arrays in parts.items():
        some = [_views.of(f"{name}[{i}]", array, stream) for i, array in enumerate(arrays)]
        borrowed += some
        is_list = isinstance(outs if name == "outs" else lses, (list, tuple))
        views[name] = [one.view for one in some] if is_list else unstacked(name, some[0].view)
    if not views["outs"] or not views["lses"]:
        raise ValueError("outs and lses: must have 1 state or more; pass the states to merge")
    state, state_lse = views["outs"][0], views["lses"][0]
    out = _output("out", out, first, state, state.shape, state.dtype)
    lse = _output("lse", lse, first, state_lse, state_lse.shape, _structs.F32)
    results = [_views.of(name, array, stream, is_output=True) for name, array in (("out", out), ("lse", lse))]
    merge(views["outs"], views["lses"], results[0].view, results[1].view, stream)
    return out, lse
