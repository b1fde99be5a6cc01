"""flash-attn's flash_attn_with_kvcache: attention over a cache of keys and values, after an append."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .._arguments import check_descales, window_sizes
from .._structs import CAUSAL_BOTTOM_RIGHT, CAUSAL_NONE
from . import _append as _append_op
from . import _ops, _segments
from ._attention import max_length
from ._eager import CODES, extras_of, prepare
from ._fa3 import FP8, dense, equal_offsets, refuse_margin, widened
from ._tensors import check_tensors


def _int32(name: str, numbers: torch.Tensor) -> torch.Tensor:
    """As the library reads them. int64 beyond int32 stays out of bounds, so that it is refused like other numbers."""
    if numbers.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name}.dtype={numbers.dtype}: must be int32 or int64; pass {name}.to(torch.int32)")
    limits = torch.iinfo(torch.int32)
    return numbers if numbers.dtype == torch.int32 else numbers.clamp(limits.min, limits.max).to(torch.int32)


def _lengths(
    name: str, lengths: int | torch.Tensor | None, batch: int, device: torch.device, capacity: int
) -> torch.Tensor:
    """Keys of each sequence in the cache, int32 [batch] on the device of q."""
    if lengths is None:
        lengths = capacity
    if isinstance(lengths, int):
        return torch.full((batch,), lengths, dtype=torch.int32, device=device)
    check_tensors((name,), (lengths,), 1)
    if lengths.shape != (batch,):
        raise ValueError(
            f"{name}.shape={tuple(lengths.shape)}: must be [batch], ({batch},) as in q; pass the number of keys "
            "of each sequence, or one int for all"
        )
    return _int32(name, lengths)


def _pages(
    batch: int, k_cache: torch.Tensor, block_table: torch.Tensor | None, batch_idx: torch.Tensor | None
) -> torch.Tensor | None:
    """The block_table of the sequences. A cache that they share by index is one of pages with a page for each."""
    table, name = block_table, "block_table"
    if table is not None:
        check_tensors((name,), (table,), 1)
    if batch_idx is not None:
        check_tensors(("cache_batch_idx",), (batch_idx,), 1)
        rows = _int32("cache_batch_idx", batch_idx)
        if table is None or table.dim() != 2:
            table, name = rows[:, None], "cache_batch_idx[:, None]"
        else:  # a row that does not exist has no page
            has_row = (rows >= 0) & (rows < table.shape[0])
            chosen = table[rows.clamp(0, max(table.shape[0] - 1, 0)).long()]
            table, name = torch.where(has_row[:, None], chosen, -1), "block_table[cache_batch_idx]"
    if table is None and k_cache.shape[0] != batch:
        raise ValueError(
            f"k_cache.shape[0]={k_cache.shape[0]}: must be batch={batch} of q; pass cache_batch_idx or block_table"
        )
    if table is not None and (table.dim() != 2 or table.shape[0] != batch):
        raise ValueError(
            f"{name}.shape={tuple(table.shape)}: must be [batch, max_pages], with batch={batch} of q"
        )
    return table


def _check_new(
    batch: int | None, k_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """`batch`: None with cu_seqlens_k_new."""
    leading, rank = ("total_new", 3) if batch is None else ("batch, seqlen_new", 4)
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        is_of_batch = batch is None or new.shape[:1] == (batch,)
        if new.dim() != rank or not is_of_batch or new.shape[-2:] != cache.shape[2:] or new.dtype != cache.dtype:
            raise ValueError(
                f"{name}: {new.dtype} {tuple(new.shape)}: must be [{leading}, heads, dim], with the batch of q "
                f"and the heads, dim and dtype of {name}_cache ({cache.dtype} {tuple(cache.shape)})"
            )
    if k.shape[: rank - 2] != v.shape[: rank - 2]:
        axis = rank - 3
        raise ValueError(
            f"v.shape[{axis}]={v.shape[axis]}: must be that of k, {k.shape[axis]}; append as many values as keys"
        )


def _check_room(
    k_cache: torch.Tensor,
    num_new: torch.Tensor,
    num_turned: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    pages: torch.Tensor | None,
    capacity: int,
    rotary: torch.Tensor | None,
) -> None:
    """Before anything is written, on the CPU; the kernel of a GPU reports such indices when it finds them."""
    counts, added, rows = lengths.tolist(), num_new.tolist(), num_turned.tolist()
    for i, count in enumerate(counts):
        if count < 0 or count + added[i] > capacity:
            raise ValueError(
                f"cache_seqlens[{i}]={count}: with {added[i]} new keys must be 0 to {capacity}, the room of a "
                "sequence in the cache; nothing was appended; evict keys or enlarge the cache"
            )
    for i, start in enumerate(starts.tolist()):
        reach = start + max(added[i], rows[i])
        if rotary is not None and not 0 <= start <= reach <= rotary.shape[0]:
            raise ValueError(
                f"rotary_cos.shape[0]={rotary.shape[0]}: must be at least {reach}, the position after the last of "
                f"sequence {i}, which starts at {start}; pass cosines and sines of more positions; nothing was appended"
            )
    if pages is None:
        return
    page_size = k_cache.shape[1]
    for i, (row, count) in enumerate(zip(pages.tolist(), counts)):
        for j in range((count + added[i] - 1) // page_size + 1 if added[i] else 0):
            if not 0 <= row[j] < k_cache.shape[0]:
                raise ValueError(
                    f"block_table[{i}, {j}]={row[j]}: must be 0 to {k_cache.shape[0] - 1}, a page of k_cache; "
                    "nothing was appended"
                )


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """_append.rotated() for float64 and codes of float8_e4m3fn, whose greatest is 448."""
    half = cos.shape[1]
    c, s = (table.double()[positions][:, :, None] for table in (cos, sin))
    dtype, x = x.dtype, x.double()
    head, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = head[..., ::2], head[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = head[..., :half], head[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), -1)
    turned = torch.cat((turned, rest), -1)
    return (turned.clamp(-448, 448) if dtype in CODES else turned).to(dtype)


def _check_rotary(cos: torch.Tensor, sin: torch.Tensor | None, head_dim: int) -> torch.Tensor:
    if sin is None or cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > head_dim:
        raise ValueError(
            f"rotary_cos.shape={tuple(cos.shape)}, rotary_sin.shape={None if sin is None else tuple(sin.shape)}: must "
            f"both be [seqlen, rotary_dim / 2], with rotary_dim at most head_dim={head_dim}"
        )
    return sin


class _Rows(NamedTuple):
    """Tokens [batch, seqlen], or ragged [1, total]: the sequence of each, its place there, and rows per sequence."""

    sequence: torch.Tensor
    place: torch.Tensor
    counts: torch.Tensor


def _rows_of(x: torch.Tensor, batch: int, cu_seqlens: torch.Tensor | None) -> _Rows:
    if cu_seqlens is None:
        sequence, place = torch.arange(batch, device=x.device)[:, None], torch.arange(x.shape[1], device=x.device)
        return _Rows(sequence, place[None], torch.full((batch,), x.shape[1], dtype=torch.int32, device=x.device))
    rows, starts = torch.arange(x.shape[0], device=x.device), cu_seqlens.long()
    sequence = torch.bucketize(rows, starts[1:], right=True).clamp(max=batch - 1)
    return _Rows(sequence[None], (rows - starts[sequence])[None], cu_seqlens.diff())


def _slots(
    cache: torch.Tensor, new: _Rows, lengths: torch.Tensor, pages: torch.Tensor | None, capacity: int
) -> torch.Tensor:
    """page * page_size + slot of new keys, int64, as _Rows has them. A key without a slot gets one past all pages,
    which the append refuses; a negative one would be padding."""
    num_pages, page_size = cache.shape[:2]
    positions = lengths.long()[new.sequence] + new.place
    page = new.sequence
    if pages is not None:
        page = pages.long()[new.sequence, (positions // page_size).clamp(0, pages.shape[1] - 1)]
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
            q = _rotated(q, *tables, rotary.of_q, rotary.interleaved)
            k = _rotated(k, *tables, rotary.of_k, rotary.interleaved)
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


def _check_names(
    k: Any, v: Any, rotary_cos: Any, cache_seqlens: Any, cu_new: Any, block_table: Any, page_table: Any, qv: Any
) -> None:  # fmt: skip
    """Which arguments go together."""
    if (k is None) != (v is None):
        raise ValueError("k and v: one of them is not given; pass both to append them, or neither")
    if rotary_cos is not None and k is None:
        raise ValueError("rotary_cos without k: rotations belong to an append; pass k and v, or rotate q before")
    if k is not None and cache_seqlens is None:
        raise ValueError("cache_seqlens: not given, but k is; pass the number of keys before those of k")
    if cu_new is not None and k is None:
        raise ValueError("cu_seqlens_k_new without k: they are its offsets; pass k and v, or leave them out")
    if block_table is not None and page_table is not None:
        raise ValueError("page_table with block_table: two names of one table; pass one")
    if qv is not None:
        raise NotImplementedError(
            "qv: the cache would be copied at every call; keep keys as torch.cat((k, v), -1), with v a view of their "
            "last dims, and pass torch.cat((q, qv), -1) as q"
        )


def _skipped(leftpad: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """cache_leftpad, int64 [batch]. On a GPU, where nothing is read on the host, too many are an error of lengths."""
    first = _lengths("cache_leftpad", leftpad, len(lengths), lengths.device, 0).long()
    for i, (n, length) in enumerate(zip(*map(torch.Tensor.tolist, (first, lengths))) if not first.is_cuda else ()):
        if not 0 <= n <= length:
            raise ValueError(f"cache_leftpad[{i}]={n}: must be 0 to {length}, the keys in use; skip fewer")
    return first.clamp(min=0)


def _of_single_keys(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    lengths: torch.Tensor,
    skipped: torch.Tensor | None,
    named: dict[str, torch.Tensor | None],
    options: tuple,
    chunk: int,
    capacity: int,
    with_lse: bool,
) -> Any:
    """Attention to keys that begin anywhere in a page: after the skipped ones, and at each chunk."""
    cu_q, num = named["cu_seqlens_q"], 1
    batch = len(lengths)
    first = torch.zeros(batch, dtype=torch.int64, device=q.device) if skipped is None else skipped
    lengths = (lengths - first).to(torch.int32)
    shape, width = q.shape, capacity
    if chunk:
        if cu_q is None:
            cu_q, q = equal_offsets(q), q.flatten(0, 1)
            options = (*options[:5], shape[1], *options[6:])
        cut = _segments.cut_paged(_segments.lengths_of(cu_q, None), lengths.long(), chunk, options[5], capacity)
        cu_q, lengths, num, width = cut.cu_seqlens_q, cut.seqused_k, cut.num, min(chunk, capacity)
        first = first.repeat_interleave(num) + cut.first_key
    k, v, table = _segments.single_keys(k_cache, v_cache, named["block_table"], first, width, num)
    of_segments = {
        name: x.repeat_interleave(num, 0) if x is not None and num > 1 and x.dim() == 2 else x
        for name, x in named.items()
    }
    of_segments.update(cu_seqlens_q=cu_q, seqused_k=lengths, block_table=table)
    out, lse, _ = _ops.attention(q, k, v, extras_of(**of_segments), options, None, False, with_lse, False)
    if chunk and len(shape) == 4:
        return dense((out, lse) if with_lse else out, *shape[:2])
    return (out, lse) if with_lse else out


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
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    attention_chunk: int = 0,
    scheduler_metadata: torch.Tensor | None = None,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
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
        cache_batch_idx: int32 or int64 [batch], the entry of the cache of each sequence, or its row of block_table.
        cache_leftpad: int32 or int64 [batch], the keys at the start of the cache that are skipped; cache_seqlens counts
            them. The cache is then read as pages of one key.
        block_table: int32 [batch, max_pages]; entries behind the keys in use are never read.
        causal: query i of seqlen_q sees keys j <= i + (keys in use) - seqlen_q.
        rotary_seqlens: int32 or int64 [batch], FlashAttention-3's: rotations start there instead of at cache_seqlens;
            ignored without rotary_cos.
        page_table: FlashAttention-3's name of block_table.
        cu_seqlens_q: int32 [batch + 1]: q is then [total_q, num_heads, head_dim], as are the results those of
            flash_attn_varlen_func. max_seqlen_q: the longest sequence, optional on the CPU.
        cu_seqlens_k_new: int32 [batch + 1]: k and v are then [total_new, num_kv_heads, dim].
        q_descale, k_descale, v_descale: float32 [batch, num_kv_heads], FlashAttention-3's: a key or value is its code
            times that of its sequence and head; float8_e4m3fn without one is taken as it is. k and v are then codes,
            too; only float8_e4m3fn is rotated. q of float8_e4m3fn is converted to bfloat16, the dtype of out; q_descale
            is of such q alone.
        attention_chunk: as flash_attn_func; the cache is then read as pages of one key.
        scheduler_metadata, pack_gqa: accepted; plans are kept by shape, and groups of query heads computed together.
        qv, sm_margin: NotImplementedError unless left out.
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
        rank = 3 if name == "q" and cu_seqlens_q is not None else 4
        if tensor.dim() != rank:
            axes = "[.., seqlen, heads, dim]" if rank == 4 else "[total_q, num_heads, head_dim], with cu_seqlens_q"
            raise ValueError(f"{name}.shape={tuple(tensor.shape)}: must have {rank} axes, {axes}")
    _check_names(k, v, rotary_cos, cache_seqlens, cu_seqlens_k_new, block_table, page_table, qv)
    refuse_margin(sm_margin)
    block_table = page_table if block_table is None else block_table
    batch = q.shape[0] if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    if q.dtype == FP8:
        q, q_descale = widened("q_descale", q, q_descale, cu_seqlens_q), None
    check_descales(
        q_descale,
        (("k_descale", k_descale, k_cache.dtype in CODES), ("v_descale", v_descale, v_cache.dtype in CODES)),
        (batch, k_cache.shape[2]),
        rotary_cos is not None and k_cache.dtype != FP8,
    )
    scales = {"k_scale": k_descale, "v_scale": v_descale}
    pages = _pages(batch, k_cache, block_table, cache_batch_idx)
    if pages is None and cu_seqlens_q is not None:  # the library reads keys of ragged queries from pages
        pages = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None]
    capacity = k_cache.shape[1] * (1 if pages is None else pages.shape[1])
    lengths = _lengths("cache_seqlens", cache_seqlens, batch, q.device, capacity)
    left, right = window_sizes(window_size)
    max_q = 0 if cu_seqlens_q is None else max_length("q", max_seqlen_q, cu_seqlens_q) or 0
    options = (
        softmax_scale, softcap, 0.0, left, right, max_q, 0, CAUSAL_BOTTOM_RIGHT if causal else CAUSAL_NONE, num_splits,
        False, False, False, False, 0,
    )  # fmt: skip
    named = {"alibi_slopes": alibi_slopes, "block_table": pages, "cu_seqlens_q": cu_seqlens_q, **scales}
    after = lengths
    if k is not None and v is not None:
        check_tensors(("k", "v"), (k, v), 2)
        if rotary_cos is not None:
            rotary_sin = _check_rotary(rotary_cos, rotary_sin, q.shape[-1])
        extras = extras_of(seqused_k=lengths, **named)
        prepare(q, k_cache, v_cache, extras, options, False, return_softmax_lse, False)  # the library's checks
        _check_new(batch if cu_seqlens_k_new is None else None, k_cache, k, v, v_cache)
        starts = lengths
        if rotary_seqlens is not None and rotary_cos is not None:
            starts = _lengths("rotary_seqlens", rotary_seqlens, batch, q.device, capacity)
        rows, new = _rows_of(q, batch, cu_seqlens_q), _rows_of(k, batch, cu_seqlens_k_new)
        has_order = causal or left >= 0 or right >= 0 or attention_chunk > 0
        if not (q.is_cuda and _has_kernel(k_cache, v_cache)):
            turned = rows.counts if has_order else rows.counts.clamp(max=1)  # without an order all rows have one place
            _check_room(k_cache, new.counts, turned, lengths, starts, pages, capacity, rotary_cos)
        rotary = None
        if rotary_cos is not None and rotary_sin is not None:
            first = starts.long()
            places = first[rows.sequence] + rows.place * int(has_order), first[new.sequence] + new.place
            rotary = _Rotary(rotary_cos, rotary_sin, *places, rotary_interleaved)
        after = lengths + new.counts
    skipped = None if cache_leftpad is None else _skipped(cache_leftpad, after)
    if k is not None and v is not None:
        slots = _slots(k_cache, new, lengths, pages, capacity)
        of_q, of_k, of_v = (x[None] if x.dim() == 3 else x for x in (q, k, v))
        q = _append(of_q, of_k, of_v, k_cache, v_cache, slots, rotary).view(q.shape)
    if cache_leftpad is None and not attention_chunk:
        extras = extras_of(seqused_k=after, **named)
        out, lse, _ = _ops.attention(q, k_cache, v_cache, extras, options, None, False, return_softmax_lse, False)
        return (out, lse) if return_softmax_lse else out
    return _of_single_keys(
        q, k_cache, v_cache, after, skipped, named, options, attention_chunk, capacity, return_softmax_lse
    )
