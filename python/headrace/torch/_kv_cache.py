"""flash-attn's flash_attn_with_kvcache: attention over a cache of keys and values, after an append."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .._arguments import check_descales, window_sizes
from .._structs import CAUSAL_BOTTOM_RIGHT, CAUSAL_NONE
from . import _append as _append_op
from . import _ops
from ._eager import CODES, extras_of, prepare
from ._tensors import check_tensors


def _int32(name: str, numbers: torch.Tensor) -> torch.Tensor:
    """As the library reads them. int64 beyond int32 stays out of bounds, so that it is refused like other numbers."""
    if numbers.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name}.dtype={numbers.dtype}: must be int32 or int64; pass {name}.to(torch.int32)")
    limits = torch.iinfo(torch.int32)
    return numbers if numbers.dtype == torch.int32 else numbers.clamp(limits.min, limits.max).to(torch.int32)


def _lengths(name: str, lengths: int | torch.Tensor | None, q: torch.Tensor, capacity: int) -> torch.Tensor:
    """Keys of each sequence in the cache, int32 [batch] on the device of q."""
    if lengths is None:
        lengths = capacity
    if isinstance(lengths, int):
        return torch.full((q.shape[0],), lengths, dtype=torch.int32, device=q.device)
    check_tensors((name,), (lengths,), 1)
    if lengths.shape != (q.shape[0],):
        raise ValueError(
            f"{name}.shape={tuple(lengths.shape)}: must be [batch], ({q.shape[0]},) as in q; pass the number of keys "
            "of each sequence, or one int for all"
        )
    return _int32(name, lengths)


def _pages(
    q: torch.Tensor, k_cache: torch.Tensor, block_table: torch.Tensor | None, batch_idx: torch.Tensor | None
) -> torch.Tensor | None:
    """The block_table of the cache. A cache that sequences share by index is one of pages with a page for each."""
    if block_table is not None and batch_idx is not None:
        raise ValueError("cache_batch_idx with block_table: must be one or the other; index block_table by it")
    if batch_idx is not None:
        check_tensors(("cache_batch_idx",), (batch_idx,), 1)
        block_table = _int32("cache_batch_idx", batch_idx)[:, None]
    if block_table is not None:
        check_tensors(("block_table",), (block_table,), 1)
        if block_table.dim() != 2 or block_table.shape[0] != q.shape[0]:
            raise ValueError(
                f"{'block_table' if batch_idx is None else 'cache_batch_idx[:, None]'}.shape="
                f"{tuple(block_table.shape)}: must be [batch, max_pages], with batch={q.shape[0]} of q"
            )
    if block_table is None and k_cache.shape[0] != q.shape[0]:
        raise ValueError(
            f"k_cache.shape[0]={k_cache.shape[0]}: must be batch={q.shape[0]} of q; pass cache_batch_idx or block_table"
        )
    return block_table


def _check_new(q: torch.Tensor, k_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, v_cache: torch.Tensor) -> None:
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if new.dim() != 4 or new.shape[0] != q.shape[0] or new.shape[2:] != cache.shape[2:] or new.dtype != cache.dtype:
            raise ValueError(
                f"{name}: {new.dtype} {tuple(new.shape)}: must be [batch, seqlen_new, heads, dim], with the batch of q "
                f"and the heads, dim and dtype of {name}_cache ({cache.dtype} {tuple(cache.shape)})"
            )
    if k.shape[1] != v.shape[1]:
        raise ValueError(f"v.shape[1]={v.shape[1]}: must be that of k, {k.shape[1]}; append as many values as keys")


def _check_room(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    seqlen_new: int,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    pages: torch.Tensor | None,
    capacity: int,
    rotary: torch.Tensor | None,
) -> None:
    """Before anything is written, on the CPU; the kernel of a GPU reports such indices when it finds them."""
    counts = lengths.tolist()
    for i, count in enumerate(counts):
        if count < 0 or count + seqlen_new > capacity:
            raise ValueError(
                f"cache_seqlens[{i}]={count}: with {seqlen_new} new keys must be 0 to {capacity}, the room of a "
                "sequence in the cache; nothing was appended; evict keys or enlarge the cache"
            )
    for i, start in enumerate(starts.tolist()):
        reach = start + max(seqlen_new, q.shape[1])
        if rotary is not None and not 0 <= start <= reach <= rotary.shape[0]:
            raise ValueError(
                f"rotary_cos.shape[0]={rotary.shape[0]}: must be at least {reach}, the position after the last of "
                f"sequence {i}, which starts at {start}; pass cosines and sines of more positions; nothing was appended"
            )
    if pages is None or seqlen_new == 0:
        return
    page_size = k_cache.shape[1]
    for i, (row, count) in enumerate(zip(pages.tolist(), counts)):
        for j in range((count + seqlen_new - 1) // page_size + 1):
            if not 0 <= row[j] < k_cache.shape[0]:
                raise ValueError(
                    f"block_table[{i}, {j}]={row[j]}: must be 0 to {k_cache.shape[0] - 1}, a page of k_cache; "
                    "nothing was appended"
                )


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """_append.rotated() for float64."""
    half = cos.shape[1]
    c, s = (table.double()[positions][:, :, None] for table in (cos, sin))
    head, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = head[..., ::2], head[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = head[..., :half], head[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((turned, rest), -1)


def _check_rotary(cos: torch.Tensor, sin: torch.Tensor | None, head_dim: int) -> torch.Tensor:
    if sin is None or cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > head_dim:
        raise ValueError(
            f"rotary_cos.shape={tuple(cos.shape)}, rotary_sin.shape={None if sin is None else tuple(sin.shape)}: must "
            f"both be [seqlen, rotary_dim / 2], with rotary_dim at most head_dim={head_dim}"
        )
    return sin


def _slots(
    cache: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor | None, capacity: int
) -> torch.Tensor:
    """page * page_size + slot of the keys `positions` [batch, seqlen], int64. A key without a slot gets one past all
    pages, which the append refuses; a negative one would be padding."""
    num_pages, page_size = cache.shape[:2]
    if pages is None:
        page = torch.arange(num_pages, device=cache.device)[:, None]
    else:
        column = (positions // page_size).clamp(0, pages.shape[1] - 1)
        page = pages.long().gather(1, column)
    has_slot = (positions >= 0) & (positions < capacity) & (page >= 0) & (page < num_pages)
    return torch.where(has_slot, page * page_size + positions % page_size, num_pages * page_size)


class _Rotary(NamedTuple):
    """Tables [seqlen, rotary_dim / 2] and the positions of q and k, [batch, seqlen]."""

    cos: torch.Tensor
    sin: torch.Tensor
    of_q: torch.Tensor
    of_k: torch.Tensor
    interleaved: bool


def _has_kernel(k_cache: torch.Tensor, v_cache: torch.Tensor) -> bool:
    """False for float64, for codes, which are copied, and for a cache whose last axis has gaps."""
    return k_cache.dtype in _append_op.DTYPES and k_cache.stride(-1) == v_cache.stride(-1) == 1


def _append(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    rotary: _Rotary | None,
) -> torch.Tensor:
    """Rotates q and k, and writes k and v to the slots. Returns the rotated q."""
    if not _has_kernel(k_cache, v_cache):  # PyTorch operations
        if rotary is not None:
            tables = (rotary.cos, rotary.sin)
            q = _rotated(q, *tables, rotary.of_q, rotary.interleaved).to(q.dtype)
            k = _rotated(k, *tables, rotary.of_k, rotary.interleaved).to(k.dtype)
        for cache, new in ((k_cache, k), (v_cache, v)):
            if cache.dtype in CODES:  # few operations take fp8
                cache, new = cache.view(torch.uint8), new.view(torch.uint8)
            cache[slots // cache.shape[1], slots % cache.shape[1]] = new
        return q
    if rotary is None:
        _append_op.append(k, v, k_cache, v_cache, slots, None, None, None, True)
        return q
    tables = (_as_table(rotary.cos), _as_table(rotary.sin))
    q = _append_op.rotated(q, rotary.of_q, *tables, rotary.interleaved)
    _append_op.append(k, v, k_cache, v_cache, slots, rotary.of_k, *tables, rotary.interleaved)
    return q


def _as_table(table: torch.Tensor) -> torch.Tensor:
    table = table if table.dtype in _append_op.DTYPES else table.float()
    return table if table.stride(-1) == 1 else table.contiguous()


@torch.no_grad()
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    rotary_seqlens: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
) -> Any:
    """flash_attn.flash_attn_with_kvcache: attention over a cache of keys and values. No gradients.

    One kernel rotates and appends k and v before the attention. Calls can be captured in a graph: nothing is read on
    the host. On a GPU a key without room in the cache, or a position past the rotary tables, is therefore not written,
    and headrace.check() raises the error; on the CPU the call fails and writes nothing. float64, and a cache whose last
    axis has gaps, are appended to by PyTorch operations, after checks on the host.

    Args:
        q: [batch, seqlen_q, num_heads, head_dim]; float16, bfloat16, float32 or float64.
        k_cache, v_cache: [batch_cache, seqlen_cache, num_kv_heads, dim]; with block_table pages, [num_pages, page_size,
            num_kv_heads, dim], of any page size. Read in place, with any strides; copied if the last axis has gaps.
            The dtype of q, or codes: int8 or float8_e4m3fn, each with its descale.
        k, v: [batch, seqlen_new, num_kv_heads, dim], written in place into the cache from key cache_seqlens[b] on;
            attention then sees them too.
        rotary_cos, rotary_sin: [seqlen, rotary_dim / 2], need k. k is rotated by positions from cache_seqlens[b] on,
            and so is q if causal or with a window; else all queries are rotated by position cache_seqlens[b].
        cache_seqlens: int, or int32 or int64 [batch], the keys in the cache before the append; default: all of it.
        cache_batch_idx: int32 or int64 [batch], the entry of the cache of each sequence; not with block_table.
        cache_leftpad: NotImplementedError unless left out.
        block_table: int32 [batch, max_pages]; entries behind the keys in use are never read.
        causal: query i of seqlen_q sees keys j <= i + (keys in use) - seqlen_q.
        rotary_seqlens: int32 or int64 [batch], FlashAttention-3's: rotations start there instead of at cache_seqlens.
        k_descale, v_descale: float32 [batch, num_kv_heads], FlashAttention-3's: a key or value is its code times that
            of its sequence and head; float8_e4m3fn without one is taken as it is. k and v are then codes, too, and not
            rotated. q has 16 or 32 bits: q_descale is refused.
        rotary_interleaved: dims 2i and 2i + 1 are a pair; else i and i + rotary_dim / 2.
        The others: as flash_attn_func.

    Returns:
        out [batch, seqlen_q, num_heads, head_dim_v]; with return_softmax_lse (out, softmax_lse), softmax_lse float32
        [batch, num_heads, seqlen_q], -inf for a row without keys.

    Raises:
        ValueError, NotImplementedError, MemoryError, RuntimeError: as attention().
    """
    check_tensors(("q", "k_cache", "v_cache"), (q, k_cache, v_cache), 3)
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if tensor.dim() != 4:
            raise ValueError(f"{name}.shape={tuple(tensor.shape)}: must have 4 axes, [.., seqlen, heads, dim]")
    if cache_leftpad is not None:
        raise NotImplementedError("cache_leftpad: this version of headrace does not support it; start keys at 0")
    if (k is None) != (v is None):
        raise ValueError("k and v: one of them is not given; pass both to append them, or neither")
    if rotary_cos is not None and k is None:
        raise ValueError("rotary_cos without k: rotations belong to an append; pass k and v, or rotate q before")
    if rotary_seqlens is not None and rotary_cos is None:
        raise ValueError("rotary_seqlens without rotary_cos: they are its positions; pass rotary_cos and rotary_sin")
    if k is not None and cache_seqlens is None:
        raise ValueError("cache_seqlens: not given, but k is; pass the number of keys before those of k")
    check_descales(
        q_descale,
        (("k_descale", k_descale, k_cache.dtype in CODES), ("v_descale", v_descale, v_cache.dtype in CODES)),
        (q.shape[0], k_cache.shape[2]),
        rotary_cos is not None,
    )
    scales = {"k_scale": k_descale, "v_scale": v_descale}
    pages = _pages(q, k_cache, block_table, cache_batch_idx)
    capacity = k_cache.shape[1] * (1 if pages is None else pages.shape[1])
    lengths = _lengths("cache_seqlens", cache_seqlens, q, capacity)
    left, right = window_sizes(window_size)
    options = (
        softmax_scale, softcap, 0.0, left, right, 0, 0, CAUSAL_BOTTOM_RIGHT if causal else CAUSAL_NONE, num_splits,
        False, False, False, False,
    )  # fmt: skip
    extras = extras_of(alibi_slopes=alibi_slopes, block_table=pages, seqused_k=lengths, **scales)
    if k is not None and v is not None:
        check_tensors(("k", "v"), (k, v), 2)
        if rotary_cos is not None:
            rotary_sin = _check_rotary(rotary_cos, rotary_sin, q.shape[-1])
        prepare(q, k_cache, v_cache, extras, options, False, return_softmax_lse, False)  # the library's checks
        _check_new(q, k_cache, k, v, v_cache)
        starts = lengths if rotary_seqlens is None else _lengths("rotary_seqlens", rotary_seqlens, q, capacity)
        if not (q.is_cuda and _has_kernel(k_cache, v_cache)):
            _check_room(q, k_cache, k.shape[1], lengths, starts, pages, capacity, rotary_cos)
        steps = torch.arange(max(q.shape[1], k.shape[1]), device=q.device)
        rotary = None
        if rotary_cos is not None and rotary_sin is not None:
            has_order = causal or left >= 0 or right >= 0
            first = starts.long()[:, None]
            of_q, of_k = first + steps[: q.shape[1]] * int(has_order), first + steps[: k.shape[1]]
            rotary = _Rotary(rotary_cos, rotary_sin, of_q, of_k, rotary_interleaved)
        slots = _slots(k_cache, lengths.long()[:, None] + steps[: k.shape[1]], pages, capacity)
        q = _append(q, k, v, k_cache, v_cache, slots, rotary)
        extras = extras_of(alibi_slopes=alibi_slopes, block_table=pages, seqused_k=lengths + k.shape[1], **scales)
    out, lse, _ = _ops.attention(q, k_cache, v_cache, extras, options, None, False, return_softmax_lse, False)
    return (out, lse) if return_softmax_lse else out
