"""sparq_attention and sparq_append on arrays."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Literal, overload

from . import _plans, _structs, _views
from ._library import LIBRARY, check
from ._softmax import _output, _stream_of


def _packed(
    struct: type, arrays: dict[str, Any], outputs: tuple[str, ...], stream: int | None
) -> tuple[Any, list[Any]]:
    """The struct of the arrays that are given, and what must live as long as it."""
    tensors, borrowed = struct(ctypes.sizeof(struct)), []
    for name, array in arrays.items():
        if array is None:
            continue
        borrowed.append(_views.of(name, array, stream, name in outputs))
        _plans.pack_view(getattr(tensors, name), name, borrowed[-1].view)
    return tensors, borrowed


@overload
def sparq_attention(
    q: Any, k: Any, v: Any, k_components: Any, *, num_components: int, num_keys: int, local_window: int = ...,
    softmax_scale: float | None = ..., v_sum: Any = ..., block_table: Any = ..., seqused_k: Any = ...,
    max_seqlen_k: int = ..., k_scale: Any = ..., v_scale: Any = ..., k_recent: Any = ..., v_recent: Any = ...,
    recent_table: Any = ..., return_indices: Literal[True], out: Any = ..., stream: int | None = ...,
) -> tuple[Any, Any, Any]: ...  # fmt: skip
@overload
def sparq_attention(
    q: Any, k: Any, v: Any, k_components: Any, *, num_components: int, num_keys: int, local_window: int = ...,
    softmax_scale: float | None = ..., v_sum: Any = ..., block_table: Any = ..., seqused_k: Any = ...,
    max_seqlen_k: int = ..., k_scale: Any = ..., v_scale: Any = ..., k_recent: Any = ..., v_recent: Any = ...,
    recent_table: Any = ..., return_indices: Literal[False] = ..., out: Any = ..., stream: int | None = ...,
) -> Any: ...  # fmt: skip
def sparq_attention(
    q: Any,
    k: Any,
    v: Any,
    k_components: Any,
    *,
    num_components: int,
    num_keys: int,
    local_window: int = 0,
    softmax_scale: float | None = None,
    v_sum: Any = None,
    block_table: Any = None,
    seqused_k: Any = None,
    max_seqlen_k: int = 0,
    k_scale: Any = None,
    v_scale: Any = None,
    k_recent: Any = None,
    v_recent: Any = None,
    recent_table: Any = None,
    return_indices: bool = False,
    out: Any = None,
    stream: int | None = None,
) -> Any:
    """SparQ attention: a decode that reads some components of every key, and then few keys and values (an
    approximation).

    A group of queries shares the num_components components with the largest sums of |q|, which estimate the softmax
    over all keys, and the num_keys keys with the largest estimates, over which attention is computed. Arrays as in
    softmax(); nothing is copied. Source: Ribar et al., "SparQ Attention", 2023, arXiv:2312.04985.

    Args:
        q: [batch, num_heads, head_dim], one query token per sequence; f32, f16 or bf16.
        k, v: [batch, seqlen_k, num_kv_heads, head_dim and head_dim_v], or with block_table pages [num_pages, page_size,
            num_kv_heads, ..]; dtype of q, or codes as in attention().
        k_components: k by component, [batch, num_kv_heads, head_dim, seqlen_k] or [num_pages, num_kv_heads, head_dim,
            page_size]: np.ascontiguousarray(k.transpose(0, 2, 3, 1)), or what sparq_append() wrote.
        num_components: the paper's r, 1 to head_dim.
        num_keys: the paper's k, 1 or more; a sequence with no more keys is computed exactly.
        local_window: the paper's l: the last keys, always among num_keys.
        softmax_scale: default head_dim**-0.5.
        v_sum: f32 [batch, num_kv_heads, head_dim_v], the sum of all values of each sequence: keys that are not read
            count with the mean value.
        block_table: i32 [batch, max_pages]; seqused_k is then required.
        seqused_k: i32 [batch], the keys of each sequence.
        max_seqlen_k: with block_table, an upper bound of seqused_k; 0: max_pages * page_size.
        k_scale, v_scale, k_recent, v_recent, recent_table: of codes, as in attention().
        return_indices: also return the keys that were read and the estimated share of the softmax that they have.
        out: output array, [batch, num_heads, head_dim_v], dtype of q. Default: a new NumPy or CuPy array.
        stream: as in softmax().

    Returns:
        out, or (out, indices, alpha) with return_indices: i32 [batch, num_kv_heads, num_keys], ascending, then -1; f32
        [batch, num_heads], 0 to 1.

    Raises:
        As softmax().
    """
    stream = _stream_of(q, stream)
    query, value = _views.of("q", q, stream).view, _views.of("v", v, stream).view
    batch, num_heads = query.shape[:2] if len(query.shape) == 3 else (0, 0)  # the library refuses other ranks
    num_kv_heads, head_dim_v = value.shape[2:] if len(value.shape) == 4 else (0, 0)
    head_dim_v *= _structs.CODES_PER_BYTE.get(value.dtype, 1)
    options = _structs.SparqOptions(
        ctypes.sizeof(_structs.SparqOptions),
        math.nan if softmax_scale is None else _plans.to_number("softmax_scale", softmax_scale),
        *(
            _plans.to_integer(name, number, 64)
            for name, number in (
                ("num_components", num_components),
                ("num_keys", num_keys),
                ("local_window", local_window),
                ("max_seqlen_k", max_seqlen_k),
            )
        ),
    )
    out = _output("out", out, q, query, (batch, num_heads, head_dim_v), query.dtype)
    arrays = {"q": q, "k": k, "k_components": k_components, "v": v, "out": out, "v_sum": v_sum}
    arrays |= {"block_table": block_table, "seqused_k": seqused_k}
    if return_indices:
        keys = max(options.num_keys, 0)
        arrays["indices"] = _output("indices", None, q, query, (batch, num_kv_heads, keys), _structs.I32)
        arrays["alpha"] = _output("alpha", None, q, query, (batch, num_heads), _structs.F32)
    tensors, _borrowed = _packed(_structs.SparqTensors, arrays, ("out", "indices", "alpha"), stream)
    codes = {"k_scale": k_scale, "v_scale": v_scale, "k_recent": k_recent, "v_recent": v_recent}
    codes["recent_table"] = recent_table
    quantised, _borrowed_codes = _packed(_structs.QuantisedKv, codes, (), stream)
    if _borrowed_codes:
        tensors.quantised = ctypes.addressof(quantised)
    check(LIBRARY.headrace_sparq_attention(ctypes.addressof(tensors), ctypes.addressof(options), None, 0, stream))
    return (out, arrays["indices"], arrays["alpha"]) if return_indices else out


def sparq_append(
    k: Any,
    k_components: Any,
    slot_mapping: Any,
    *,
    v: Any = None,
    v_sum: Any = None,
    cu_seqlens: Any = None,
    k_slots: Any = None,
    v_scale: Any = None,
    stream: int | None = None,
) -> None:
    """Brings k_components and v_sum up to date with new tokens, whose keys and values are in the cache already.

    Args:
        k: [num_pages, page_size, num_kv_heads, head_dim]; f32, f16 or bf16. A cache without pages, [batch, seqlen_k,
            num_kv_heads, head_dim], is one of batch pages.
        k_components: written: [num_pages, num_kv_heads, head_dim, page_size], dtype of k.
        slot_mapping: i64 [num_tokens], page * page_size + slot of each new token; negative: left out.
        v: [num_pages, page_size, num_kv_heads, head_dim_v], dtype of k, or codes with v_scale; with v_sum.
        v_sum: added to: f32 [batch, num_kv_heads, head_dim_v]; zeros for new sequences.
        cu_seqlens: i32 [batch + 1]: tokens cu_seqlens[b] to cu_seqlens[b + 1] belong to row b of v_sum. Default: one
            token per row.
        k_slots: i64 [num_tokens], for a cache of codes: where k has the tokens' keys, page * k.shape[1] + slot. k is
            then k_recent with the recent_slots of kv_append(), or the new keys as one page. Default: slot_mapping.
        v_scale: of codes, as in attention(), a scale for each key and head.
        stream: as in softmax().

    Raises:
        As softmax().
    """
    stream = _stream_of(k, stream)
    arrays = {"k": k, "slot_mapping": slot_mapping, "k_components": k_components, "v": v, "v_sum": v_sum}
    arrays |= {"cu_seqlens": cu_seqlens, "k_slots": k_slots, "v_scale": v_scale}
    tensors, _borrowed = _packed(_structs.SparqAppendTensors, arrays, ("k_components", "v_sum"), stream)
    check(LIBRARY.headrace_sparq_append(ctypes.addressof(tensors), stream))
