"""A ragged batch cut into segments: unused rows of seqused_q and seqused_k, and chunks of attention_chunk.

Each segment of queries sees the keys of its own segment alone, so it is a sequence of a longer ragged batch. Only the
offsets change: q, k, v and their gradients are read and written in place, and nothing is read on the host.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch

_Tensors = tuple[torch.Tensor, torch.Tensor]


class Lengths(NamedTuple):
    """Of each sequence, int64 [batch]: its first row, the rows in use, and the end of its rows."""

    first: torch.Tensor
    used: torch.Tensor
    end: torch.Tensor


def lengths_of(cu_seqlens: torch.Tensor, seqused: torch.Tensor | None) -> Lengths:
    first, end = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    return Lengths(first, end - first if seqused is None else seqused.long(), end)


def num_chunks(chunk: int, max_seqlen_q: int, max_seqlen_k: int) -> int:
    """The most chunks that the queries of a sequence lie in."""
    return 1 if not chunk else -(-min(max_seqlen_q, max_seqlen_k) // chunk) + 1


def bounds_of(used_q: torch.Tensor, used_k: torch.Tensor, chunk: int, num: int) -> _Tensors:
    """Rows and keys [batch, num + 1] at which chunks begin, and the last one ends, from the start of the sequence.

    Query i is at key i + used_k - used_q, and sees the keys of its own chunk of `chunk` keys. Rows before the first
    bound see no key. Without a chunk, 0, all of a sequence is one.
    """
    if not chunk:
        rows, keys = (torch.nn.functional.pad(used[:, None], (1, 0)) for used in (used_q, used_k))
        return rows, keys
    shift = (used_k - used_q)[:, None]
    first = torch.div(shift.clamp(min=0), chunk, rounding_mode="floor")
    steps = torch.arange(num + 1, device=used_q.device)
    keys = torch.minimum((first + steps) * chunk, used_k[:, None])
    rows = torch.minimum((keys - shift).clamp(min=0), used_q[:, None])
    rows[:, :1] = (-shift).clamp(min=0)
    return rows, keys


def _offsets(parts: list[torch.Tensor]) -> torch.Tensor:
    """cu_seqlens from the ends of segments, [batch, any] each."""
    return torch.nn.functional.pad(torch.cat(parts, 1).flatten(), (1, 0)).to(torch.int32)


def cut(
    q: Lengths, k: Lengths, chunk: int, max_seqlen_q: int, max_seqlen_k: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """cu_seqlens_q and cu_seqlens_k of the segments, and how many each sequence has: what comes before the first chunk,
    the chunks, rows out of use, keys out of use. Only the chunks have both rows and keys.
    """
    num = num_chunks(chunk, max_seqlen_q, max_seqlen_k)
    rows, keys = bounds_of(q.used, k.used, chunk, num)
    rows, keys = rows + q.first[:, None], keys + k.first[:, None]
    end_q, end_k = q.end[:, None], k.end[:, None]
    return _offsets([rows, end_q, end_q]), _offsets([keys, keys[:, -1:], end_k]), num + 3


class Paged(NamedTuple):
    """Segments whose keys are in pages, `num` for each sequence."""

    cu_seqlens_q: torch.Tensor
    seqused_k: torch.Tensor
    first_key: torch.Tensor  # int64 [batch * num]
    num: int


def cut_paged(q: Lengths, used_k: torch.Tensor, chunk: int, max_seqlen_q: int, capacity: int) -> Paged:
    """As cut(), without the keys that no query sees."""
    num = num_chunks(chunk, max_seqlen_q, capacity)
    rows, keys = bounds_of(q.used, used_k, chunk, num)
    pad = torch.nn.functional.pad
    first, counts = pad(keys[:, :-1], (1, 1)).flatten(), pad(keys.diff(), (1, 1)).flatten()
    offsets = _offsets([rows + q.first[:, None], q.end[:, None]])
    return Paged(offsets, counts.to(torch.int32), first, num + 2)


def single_keys(
    k: torch.Tensor, v: torch.Tensor, block_table: torch.Tensor | None, first_key: torch.Tensor, width: int, num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A cache as pages of one key, in place, so that segments can begin at any key; and their block_table.

    Args:
        k, v: [num_pages, page_size, num_kv_heads, dim]; without a block_table one page for each sequence.
        first_key: int64 [batch * num], the key at which a segment begins.
        width: the most keys of a segment.
    """
    page_size = k.shape[1]
    keys = first_key[:, None] + torch.arange(width, device=k.device)
    if block_table is None:
        page, slot = torch.arange(k.shape[0], device=k.device).repeat_interleave(num)[:, None], keys
    else:
        columns = torch.div(keys, page_size, rounding_mode="floor").clamp(max=block_table.shape[1] - 1)
        page, slot = block_table.repeat_interleave(num, 0).long().gather(1, columns), keys % page_size
    strides = {x.stride(0) / x.stride(1) if x.stride(1) else 0.5 for x in (k, v)} if k.shape[0] > 1 else {page_size}
    if len(strides) > 1 or not float(unit := strides.pop()).is_integer():
        k, v, unit = k.contiguous(), v.contiguous(), page_size
    unit = int(unit)
    limits = torch.iinfo(torch.int32)
    table = (page * unit + slot).clamp(limits.min, limits.max).to(torch.int32)
    size = (k.shape[0] - 1) * unit + page_size
    k, v = (x.as_strided((size, 1, *x.shape[2:]), (x.stride(1), *x.stride()[1:])) for x in (k, v))
    return k, v, table


_Optional = Optional[torch.Tensor]
_Cut = tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, _Optional, _Optional, _Optional, int]]


def of_call(
    k: torch.Tensor,
    v: torch.Tensor,
    block_table: torch.Tensor | None,
    given: tuple,
    chunk: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> _Cut:
    """k, v, and of the segments (cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, how many a sequence has).

    Args:
        given: cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k of the call.
    """
    cu_q, cu_k, used_q, used_k = given
    of_q = lengths_of(cu_q, used_q)
    if block_table is None:
        of_k = lengths_of(cu_k, used_k)
        offsets_q, offsets_k, num = cut(of_q, of_k, chunk, max_seqlen_q, max_seqlen_k)
        return k, v, (offsets_q, offsets_k, None, None, num)
    capacity = block_table.shape[1] * k.shape[1]
    if used_k is None:
        used_k = torch.full((len(cu_q) - 1,), capacity, device=cu_q.device)
    segments = cut_paged(of_q, used_k.long(), chunk, max_seqlen_q, capacity)
    if chunk:
        width = min(chunk, capacity)
        k, v, block_table = single_keys(k, v, block_table, segments.first_key, width, segments.num)
    else:
        block_table = block_table.repeat_interleave(segments.num, 0)
    return k, v, (segments.cu_seqlens_q, None, segments.seqused_k, block_table, segments.num)
