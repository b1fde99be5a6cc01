"""scaled_dot_product_attention of nested tensors, whose memory layout is that of a ragged batch."""

from __future__ import annotations

from typing import Any

import torch

from . import _ops
from ._attention import random_dropout_state
from ._eager import extras_of


def is_any_nested(*tensors: Any) -> bool:
    return any(isinstance(t, torch.Tensor) and t.is_nested for t in tensors)


def _sequences(name: str, tensor: Any) -> Any:
    """[batch, seqlen (ragged), heads, dim] without gaps between sequences."""
    if not (is_any_nested(tensor) and tensor.layout == torch.jagged and tensor.dim() == 4 and tensor._ragged_idx == 2):
        what = tensor.layout if is_any_nested(tensor) else type(tensor).__name__
        raise ValueError(
            f"{name} ({what}): query, key and value must all be nested tensors of layout torch.jagged, [batch, heads, "
            "seqlen (ragged), head_dim]; create them with torch.nested.nested_tensor(..., layout=torch.jagged) and "
            "transpose(1, 2)"
        )
    sequences = tensor.transpose(1, 2)
    return sequences if sequences.lengths() is None else sequences.contiguous()


def _longest(sequences: Any) -> int:
    """Newer PyTorch versions cache it; reading it from a GPU synchronizes."""
    kept = getattr(sequences, "_get_max_seqlen", None)
    return int(sequences.offsets().diff().max()) if kept is None else kept()


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    causal: int,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """[batch, heads, seqlen (ragged), head_dim_v], ragged as query is."""
    q, k, v = (_sequences(name, t) for name, t in (("query", query), ("key", key), ("value", value)))
    if attn_mask is not None:
        raise ValueError(
            "attn_mask with nested tensors: must be None, as in PyTorch; pass is_causal, or one sequence at a time"
        )
    if not (k.offsets() is v.offsets() or torch.equal(k.offsets(), v.offsets())):
        raise ValueError(
            "key and value have sequences of different lengths: must be equal; create them from one offsets tensor"
        )
    heads, *kv_heads = (t.shape[2] for t in (q, k, v))
    if not enable_gqa and any(n not in (1, heads) for n in kv_heads):
        raise ValueError(
            f"key and value have {kv_heads[0]} and {kv_heads[1]} heads and query {heads}: must be equal; pass "
            "enable_gqa=True for groups of query heads that share a KV head"
        )
    cu_seqlens_q, cu_seqlens_k = (t.offsets().to(torch.int32) for t in (q, k))
    max_seqlen_q, max_seqlen_k = _longest(q), _longest(k)
    extras = extras_of(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    options = (
        scale, 0.0, dropout_p, -1, -1, max_seqlen_q, max_seqlen_k, causal, 0, False, False, False, False, 0,
    )  # fmt: skip
    state = random_dropout_state() if dropout_p else None
    q_values, k_values, v_values = (t.values() for t in (q, k, v))
    out = _ops.attention(q_values, k_values, v_values, extras, options, state, False, False, False)[0]
    return torch.nested.nested_tensor_from_jagged(out, q.offsets()).transpose(1, 2)
