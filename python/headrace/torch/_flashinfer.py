"""FlashInfer's functions of one request, its append and its merges, with the conventions of _wrappers.py.

Sources of the signatures: flashinfer/decode.py, prefill.py, page.py and cascade.py of FlashInfer 0.6.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .._arguments import make_options
from . import _append as _append_op
from ._combine import flash_attn_combine
from ._eager import NO_EXTRAS, extras_of
from ._tensors import check_tensors
from ._wrapper_base import (
    Pages,
    attend,
    check_encoding,
    check_layout,
    check_rest,
    check_tensor,
    dtype_of,
    factor,
    pages_of,
    vector,
)


def single_decode_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    return_lse: bool = False,
) -> Any:
    """flashinfer.single_decode_with_kv_cache: one query token.

    Args:
        q: [num_qo_heads, head_dim].
        k, v: [kv_len, num_kv_heads, head_dim]; with kv_layout="HND" [num_kv_heads, kv_len, head_dim].
        use_tensor_cores, rope_scale, rope_theta: unused. The others: as BatchDecodeWithPagedKVCacheWrapper.

    Returns:
        out [num_qo_heads, head_dim]; with return_lse (out, lse), lse [num_qo_heads] in base 2.
    """
    check_tensors(("q",), (q,), 1)
    check_tensor("q", q, (None, None), "[num_qo_heads, head_dim]", None, q.device)
    results = single_prefill_with_kv_cache(
        q[None], k, v, kv_layout=kv_layout, pos_encoding_mode=pos_encoding_mode, sm_scale=sm_scale, k_scale=k_scale,
        window_left=window_left, logits_soft_cap=logits_soft_cap, return_lse=return_lse, v_scale=v_scale,
        q_scale=q_scale,
    )  # fmt: skip
    return tuple(x[0] for x in results) if return_lse else results[0]


@torch.no_grad()
def single_prefill_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale_q: torch.Tensor | None = None,
    scale_k: torch.Tensor | None = None,
    scale_v: torch.Tensor | None = None,
    o_dtype: torch.dtype | None = None,
    custom_mask: torch.Tensor | None = None,
    packed_custom_mask: torch.Tensor | None = None,
    causal: bool = False,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    kv_cache_sf: tuple[torch.Tensor, torch.Tensor] | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    q_scale: float | None = None,
) -> Any:
    """flashinfer.single_prefill_with_kv_cache: the queries of one sequence.

    Args:
        q: [qo_len, num_qo_heads, head_dim_qk], the last tokens of the sequence.
        k, v: [kv_len, num_kv_heads, head_dim]; with kv_layout="HND" [num_kv_heads, kv_len, head_dim].
        custom_mask: bool [qo_len, kv_len], True: the query sees the key; instead of causal.
        use_fp16_qk_reduction, rope_scale, rope_theta, backend: unused. Refused: scale_q, scale_k, scale_v,
            packed_custom_mask, kv_cache_sf.
        q_scale: as k_scale. The others: as BatchPrefillWithPagedKVCacheWrapper.

    Returns:
        out [qo_len, num_qo_heads, head_dim_vo]; with return_lse (out, lse), lse [qo_len, num_qo_heads] in base 2.
    """
    given = {"scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v, "packed_custom_mask": packed_custom_mask}
    check_rest("single_prefill_with_kv_cache", {**given, "kv_cache_sf": kv_cache_sf})
    check_encoding(pos_encoding_mode)
    check_tensors(("q", "k", "v", "custom_mask"), (q, k, v, custom_mask), 3)
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x, (None, None, None), "[tokens, heads, dim] (k, v: as kv_layout)", None, q.device)
    if dtype_of("o_dtype", o_dtype) not in (None, q.dtype):
        raise NotImplementedError(f"o_dtype={o_dtype}: must be that of q, {q.dtype}; leave it out and convert out")
    extras = NO_EXTRAS
    if custom_mask is not None:
        shape = (q.shape[0], k.shape[1 if check_layout(kv_layout) else 0])
        check_tensor("custom_mask", custom_mask, shape, "[qo_len, kv_len]", torch.bool, q.device)
        extras = extras_of(mask=custom_mask[None, None])
    if check_layout(kv_layout):
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    scores = factor("q_scale", q_scale) * factor("k_scale", k_scale)
    options = make_options(
        softmax_scale=sm_scale if scores == 1 else scores * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale),
        causal=causal and custom_mask is None, window=(window_left, -1), softcap=logits_soft_cap or 0.0, dropout_p=0.0,
        max_seqlen_q=None, max_seqlen_k=None, num_splits=0, strict_rows=False, strict_fallback=False, checked=False,
    )  # fmt: skip
    return attend(
        q[None], k[None], v[None], extras, options, factor("v_scale", v_scale), None, None, return_lse
    )


# ---- appends ----


def get_seq_lens(kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """flashinfer.page.get_seq_lens: keys of each sequence, int32 [batch]; 0 without pages."""
    last_len = vector("kv_last_page_len", kv_last_page_len)
    counts = vector("kv_indptr", kv_indptr, last_len.shape[0] + 1).diff()
    return torch.where(counts > 0, (counts - 1) * page_size + last_len, 0)


def get_batch_indices_positions(
    append_indptr: torch.Tensor, seq_lens: torch.Tensor, nnz: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """flashinfer.get_batch_indices_positions: where new tokens belong, for append_paged_kv_cache().

    Args:
        append_indptr: [batch + 1]: the new tokens of sequence b are rows append_indptr[b] to append_indptr[b + 1] - 1.
        seq_lens: [batch], keys of each sequence, the new ones included.
        nnz: rows in all; those past append_indptr[batch] belong to no sequence.

    Returns:
        (batch_indices, positions), int32 [nnz]; -1 and 0 of a row without a sequence.
    """
    lengths = vector("seq_lens", seq_lens)
    ends = vector("append_indptr", append_indptr, lengths.shape[0] + 1)[1:].contiguous()
    rows = torch.arange(nnz, dtype=torch.int32, device=ends.device)
    if not ends.numel():
        return torch.full_like(rows, -1), torch.zeros_like(rows)
    batch_indices = torch.bucketize(rows, ends, right=True, out_int32=True)
    last = batch_indices.clamp(max=ends.shape[0] - 1).long()
    has_sequence = batch_indices < ends.shape[0]
    positions = rows - ends[last] + lengths.to(ends.device)[last]
    return torch.where(has_sequence, batch_indices, -1), torch.where(has_sequence, positions, 0)


@torch.no_grad()
def append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: Pages,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    """flashinfer.append_paged_kv_cache: writes new keys and values to their pages. Graphs can capture it on a GPU.

    Args:
        append_key, append_value: [nnz, num_kv_heads, head_dim]; float32, float16 or bfloat16.
        batch_indices, positions: [nnz], the sequence of each token and its place there; a token of sequence -1 is not
            stored. get_batch_indices_positions() has them.
        paged_kv_cache, kv_layout: as BatchDecodeWithPagedKVCacheWrapper; written.
        kv_indices, kv_indptr: the page table, with the pages of the new tokens.
        kv_last_page_len: not read, because positions say where tokens belong.

    Raises:
        ValueError, NotImplementedError: as attention(). A token outside of the pages of its sequence is not written: on
            the CPU nothing is, and the call fails; on a GPU headrace.check() raises the error.
    """
    k_pages, v_pages = pages_of(paged_kv_cache, check_layout(kv_layout))
    check_tensors(("append_key", "append_value"), (append_key, append_value), 2)
    for name, new, pages in (("append_key", append_key, k_pages), ("append_value", append_value, v_pages)):
        axes, shape = "[nnz, num_kv_heads, head_dim]", (append_key.shape[0], *pages.shape[2:])
        check_tensor(name, new, shape, axes, pages.dtype, pages.device, " as the pages")
        if new.dtype not in _append_op.DTYPES:
            raise NotImplementedError(f"{name}.dtype={new.dtype}: must be float32, float16 or bfloat16; convert {name}")
    count = append_key.shape[0]
    sequences, places = vector("batch_indices", batch_indices, count), vector("positions", positions, count)
    vector("kv_last_page_len", kv_last_page_len)
    first, entries = vector("kv_indptr", kv_indptr), vector("kv_indices", kv_indices)
    num_pages, page_size = k_pages.shape[:2]
    batch, past = first.shape[0] - 1, num_pages * page_size  # a slot past all pages is an error, a negative one padding
    if batch < 1 or not entries.shape[0]:
        slots = torch.where(sequences < 0, -1, past)
    else:
        row, place = sequences.clamp(0, batch - 1).long(), places.long()
        entry = first[row] + place // page_size
        page = entries[entry.clamp(0, entries.shape[0] - 1)].long()
        has_slot = (sequences < batch) & (place >= 0) & (entry < first[row + 1]) & (entry < entries.shape[0])
        has_slot &= (page >= 0) & (page < num_pages)
        slots = torch.where(sequences < 0, -1, torch.where(has_slot, page * page_size + place % page_size, past))
    if not slots.is_cuda and bool((slots == past).any()):
        i = int((slots == past).nonzero()[0])
        raise ValueError(
            f"positions[{i}]={int(places[i])} of sequence {int(sequences[i])}: must be in a page of the sequence, "
            "which kv_indptr, kv_indices and page_size say; nothing was appended; add its pages to the table"
        )
    _append_op.append(
        append_key[None], append_value[None], k_pages, v_pages, slots.long(), None, None, None, True
    )


# ---- merges ----


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """flashinfer.merge_states: merges attention over disjoint keys, with lse in base 2, unlike headrace.merge_states
    and flash_attn_combine().

    Args:
        v: [seq_len, num_states, num_heads, head_dim]. s: [seq_len, num_states, num_heads], as wrappers return lse.

    Returns:
        (v [seq_len, num_heads, head_dim], s float32 [seq_len, num_heads]).
    """
    check_tensors(("v", "s"), (v, s), 2)
    if v.dim() != 4 or s.shape != v.shape[:-1]:
        raise ValueError(
            f"v.shape={tuple(v.shape)}, s.shape={tuple(s.shape)}: must be [seq_len, num_states, num_heads, head_dim] "
            "and [seq_len, num_states, num_heads]; stack states along axis 1"
        )
    out, lse = flash_attn_combine(v.transpose(0, 1), s.transpose(0, 1).float() * math.log(2))
    return out, torch.mul(lse, 1 / math.log(2), out=torch.empty_like(lse, memory_format=torch.contiguous_format))


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """flashinfer.merge_state: merge_states() of two, v [seq_len, num_heads, head_dim] and s [seq_len, num_heads]."""
    check_tensors(("v_a", "s_a", "v_b", "s_b"), (v_a, s_a, v_b, s_b), 4)
    if v_a.shape != v_b.shape or s_a.shape != s_b.shape or v_a.dtype != v_b.dtype:
        raise ValueError(
            f"v_b: {v_b.dtype} {tuple(v_b.shape)}, s_b.shape={tuple(s_b.shape)}: must be those of state a, {v_a.dtype} "
            f"{tuple(v_a.shape)} and {tuple(s_a.shape)}; merge states of the same queries"
        )
    return merge_states(torch.stack((v_a, v_b), 1), torch.stack((s_a, s_b), 1))
