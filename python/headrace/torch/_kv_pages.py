"""Pages of a headrace.KvCache as tensors, and page tables in other forms."""

from __future__ import annotations

import numpy as np
import torch

from .. import _structs
from .._kv_cache import KvCache, _Pages
from ._kv_cache import _int32
from ._tensors import check_tensors


def kv_pages(cache: KvCache, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The key and value pages of a layer as tensors, in place: [num_pages, page_size, num_kv_heads, head_dim] and
    [.., head_dim_v], for block_table of flash_attn_with_kvcache() and attention(). The tensors keep the memory alive.
    """
    return _tensor(cache._pages("k_pages", layer)), _tensor(cache._pages("v_pages", layer))


_CSR_NAMES = ("kv_indptr", "kv_indices", "kv_last_page_len")
_OF_BITS = {_structs.BF16: torch.bfloat16, _structs.F8E4M3: torch.float8_e4m3fn}


def _tensor(pages: _Pages) -> torch.Tensor:
    if pages.is_cuda:
        tensor = torch.as_tensor(pages, device=f"cuda:{pages.device_id}")
    else:
        tensor = torch.from_numpy(np.asarray(pages))
    return tensor.view(_OF_BITS[pages.dtype]) if pages.dtype in _OF_BITS else tensor


def block_table_from_csr(
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    page_size: int,
    max_pages: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashInfer's page table (CSR) as block_table and seqused_k, on the same device.

    attention() reads int32 tables as they are: block_table=kv_indices, page_indptr=kv_indptr. This function is for
    those that take a block_table of one row length.

    Args:
        kv_indptr: int32 or int64 [batch + 1]; the pages of sequence b are kv_indices[kv_indptr[b] : kv_indptr[b + 1]].
        kv_indices: int32 or int64 [num_entries], page numbers.
        kv_last_page_len: int32 or int64 [batch], keys in the last page of each sequence; ignored without pages.
        page_size: tokens per page.
        max_pages: row length of block_table; default: the most pages of a sequence, which a GPU must be waited for.
            With it nothing waits, and graphs can capture the call.

    Returns:
        (block_table int32 [batch, max_pages], 0 past a sequence's last page; seqused_k int32 [batch]).

    Raises:
        ValueError: wrong shapes or dtypes; on the CPU also an offset that descends or leaves kv_indices, a length that
            does not fit its page, or more pages than max_pages.
    """
    names, tensors = _CSR_NAMES, (kv_indptr, kv_indices, kv_last_page_len)
    check_tensors(names, tensors, 3)
    for name, tensor in zip(names, tensors):
        if tensor.dim() != 1 or tensor.device != kv_indptr.device:
            raise ValueError(
                f"{name}: {tuple(tensor.shape)} on {tensor.device}: must have 1 axis, on the device of kv_indptr, "
                f"{kv_indptr.device}; reshape or move it"
            )
    if kv_indptr.shape[0] != kv_last_page_len.shape[0] + 1:
        raise ValueError(
            f"kv_indptr.shape[0]={kv_indptr.shape[0]}: must be {kv_last_page_len.shape[0] + 1}, one more than that of "
            "kv_last_page_len; pass the offsets of all sequences and their end"
        )
    first, indices, last_len = (_int32(name, tensor) for name, tensor in zip(names, tensors))
    counts = first[1:] - first[:-1]
    if not first.is_cuda:
        _check_csr(first, indices, counts, last_len, page_size, max_pages)
    if max_pages is None:
        max_pages = int(counts.max()) if counts.numel() else 0
    columns = torch.arange(max_pages, device=first.device, dtype=torch.int32)
    at = (first[:-1, None] + columns).clamp(0, max(indices.numel() - 1, 0))
    has_page = columns < counts[:, None]
    block_table = torch.where(has_page, indices[at], 0) if indices.numel() else torch.zeros_like(at)
    return block_table, torch.where(counts > 0, (counts - 1) * page_size + last_len, 0)


def _check_csr(
    first: torch.Tensor,
    indices: torch.Tensor,
    counts: torch.Tensor,
    last_len: torch.Tensor,
    page_size: int,
    max_pages: int | None,
    names: tuple[str, ...] = _CSR_NAMES,
) -> None:
    if first[0] != 0 or first[-1] != indices.numel() or bool((counts < 0).any()):
        raise ValueError(
            f"{names[0]}: must begin with 0, not descend, and end with {indices.numel()}, the entries of {names[1]}; "
            f"{first.tolist()[:4]}... to {int(first[-1])} arrived"
        )
    for i, (count, length) in enumerate(zip(counts.tolist(), last_len.tolist())):
        if count > 0 and not 1 <= length <= page_size:
            raise ValueError(f"{names[2]}[{i}]={length}: must be 1 to page_size={page_size}; correct it")
        if max_pages is not None and count > max_pages:
            raise ValueError(f"max_pages={max_pages}: must be at least {count}, the pages of sequence {i}; raise it")
