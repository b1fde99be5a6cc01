"""FlashAttention-3's get_scheduler_metadata."""

from __future__ import annotations

from typing import Any, Optional

import torch


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: torch.Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: Optional[int] = None,
    cu_seqlens_q: Optional[torch.Tensor] = None,
    cu_seqlens_k_new: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    page_size: Optional[int] = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> torch.Tensor:
    """flash_attn_interface.get_scheduler_metadata: for scheduler_metadata of flash_attn_with_kvcache, which ignores it.

    The package keeps plans by shape, so there is nothing to compute ahead.

    Returns:
        An empty int32 tensor on the device of cache_seqlens.
    """
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)
