"""kv_append on arrays: new keys and values into the pages of a cache."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _plans, _structs, _views
from ._library import LIBRARY, check
from ._softmax import _stream_of

_OUTPUTS = ("k_pages", "v_pages", "q_out", "k_scale", "v_scale", "k_recent", "v_recent")


def kv_append(
    *,
    k: Any = None,
    v: Any = None,
    k_pages: Any = None,
    v_pages: Any = None,
    slot_mapping: Any = None,
    q: Any = None,
    q_out: Any = None,
    positions: Any = None,
    cos: Any = None,
    sin: Any = None,
    interleaved: bool = True,
    q_norm_weight: Any = None,
    k_norm_weight: Any = None,
    norm_eps: float = 1e-6,
    hadamard: bool = False,
    k_scale: Any = None,
    v_scale: Any = None,
    k_recent: Any = None,
    v_recent: Any = None,
    recent_slots: Any = None,
    channel_factors: Any = None,
    stream: int | None = None,
) -> None:
    """Writes new keys and values to their slots, and q to q_out, in one pass: each head of q and k is normalised if it
    has a weight, rotated by the angles of its position, and multiplied by channel factors and a Hadamard matrix if
    those are wanted.

    Arrays as in attention(): NumPy arrays, DLPack, the CUDA array interface. q with q_out, or k and v with their pages
    and slot_mapping, or both.

    Args:
        k, v: [num_tokens, num_kv_heads, dim]; f32, f16 or bf16.
        k_pages, v_pages: written: [num_pages, page_size, num_kv_heads, dim], those of KvCache; f32, f16, bf16 or codes.
        slot_mapping: int64 [num_tokens], page * page_size + slot; negative: the token is not stored.
        q: [num_tokens, num_heads, head_dim]. q_out: written: the same shape; may be q.
        positions: int32 [num_tokens], with cos and sin, [max_positions, rot_dim / 2]: the first rot_dim elements of q
            and k are rotated. interleaved: elements 2i and 2i + 1 are a pair, else i and i + rot_dim / 2.
        q_norm_weight, k_norm_weight: [head_dim]: RMS norm of each head, with norm_eps.
        hadamard: multiplies q and k by the same orthogonal matrix, which changes no score: for keys of 4 bits.
        k_scale, v_scale: written: of codes, f32 [num_pages, page_size, num_kv_heads].
        k_recent, v_recent: written: of codes, the second place of keys and values, unquantised; with recent_slots,
            int64 [num_tokens]. KvCache.quantised() and Batch have all of these.
        channel_factors: f32 [num_kv_heads, head_dim], powers of two: q is multiplied by them and k divided, which
            changes no score: where some channels of int8 or int4 keys are much larger than others.
        stream: as in attention().

    Raises:
        As attention(). An error on the CPU means that nothing was written.
    """
    first = k if q is None else q
    if first is None:
        raise ValueError("q and k: neither is given; pass q with q_out, or k and v with pages and slot_mapping")
    stream = _stream_of(first, stream)
    arrays = {
        "k": k, "v": v, "k_pages": k_pages, "v_pages": v_pages, "slot_mapping": slot_mapping, "q": q, "q_out": q_out,
        "positions": positions, "cos": cos, "sin": sin, "q_norm_weight": q_norm_weight,
        "k_norm_weight": k_norm_weight, "recent_slots": recent_slots, "channel_factors": channel_factors,
    }  # fmt: skip
    of_codes = {"k_scale": k_scale, "v_scale": v_scale, "k_recent": k_recent, "v_recent": v_recent}
    borrowed: list[Any] = []
    tensors = _structs.KvAppendTensors(ctypes.sizeof(_structs.KvAppendTensors))
    quantised = _structs.QuantisedKv(ctypes.sizeof(_structs.QuantisedKv))
    for struct, group in ((tensors, arrays), (quantised, of_codes)):
        for name, array in group.items():
            if array is not None:
                borrowed.append(_views.of(name, array, stream, name in _OUTPUTS))
                _plans.pack_view(getattr(struct, name), name, borrowed[-1].view)
    if any(array is not None for array in of_codes.values()):
        tensors.quantised = ctypes.addressof(quantised)
    options = _structs.KvAppendOptions()
    check(LIBRARY.headrace_kv_append_options_init_sized(ctypes.addressof(options), ctypes.sizeof(options)))
    rope = _structs.RopeOptions()
    if cos is not None:
        check(LIBRARY.headrace_rope_options_init_sized(ctypes.addressof(rope), ctypes.sizeof(rope)))
        rope.layout = _structs.ROPE_INTERLEAVED if interleaved else _structs.ROPE_HALVES
        options.rope = ctypes.addressof(rope)
    options.norm_eps = _plans.to_number("norm_eps", norm_eps)
    options.hadamard = bool(hadamard)
    check(LIBRARY.headrace_kv_append(ctypes.addressof(tensors), ctypes.addressof(options), stream))
