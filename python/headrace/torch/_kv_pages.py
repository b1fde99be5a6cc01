"""Pages of a headrace.KvCache as tensors."""

from __future__ import annotations

import numpy as np
import torch

from .. import _structs
from .._kv_cache import KvCache


def kv_pages(cache: KvCache, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The key and value pages of a layer as tensors, in place: [num_pages, page_size, num_kv_heads, head_dim] and
    [.., head_dim_v], for block_table of flash_attn_with_kvcache() and attention(). The tensors keep the memory alive.
    """
    tensors = []
    for name in ("k_pages", "v_pages"):
        pages = cache._pages(name, layer)
        if pages.is_cuda:
            tensor = torch.as_tensor(pages, device=f"cuda:{pages.device_id}")
        else:
            tensor = torch.from_numpy(np.asarray(pages))
        tensors.append(tensor.view(torch.bfloat16) if pages.dtype == _structs.BF16 else tensor)
    return tensors[0], tensors[1]
