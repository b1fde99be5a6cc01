"""Headrace for PyTorch 2.4 and newer, on the CPU and CUDA.

The functions of flash-attn (same names, argument order, defaults and results), PyTorch's scaled_dot_product_attention,
and attention() with all features of the library. They work under torch.compile without graph breaks, with fake tensors
and autocast, on inputs of any strides; on CUDA they enqueue on the current stream.

q, k, v, bias and sinks have gradients, on the CPU and on CUDA.

FlashInfer's wrappers of keys in pages (plan() once a step, run() for each layer) and the functions beside them, without
gradients and with lse in base 2.
"""

from ._attention import attention
from ._combine import flash_attn_combine
from ._flash_attn import flash_attn_func, flash_attn_varlen_func
from ._flashinfer import (
    append_paged_kv_cache,
    get_batch_indices_positions,
    get_seq_lens,
    merge_state,
    merge_states,
    single_decode_with_kv_cache,
    single_prefill_with_kv_cache,
)
from ._kv_cache import flash_attn_with_kvcache
from ._kv_pages import block_table_from_csr, kv_pages
from ._packed import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from ._scheduler import get_scheduler_metadata
from ._sdpa import replace_sdpa, scaled_dot_product_attention
from ._wrappers import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
)

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
    "append_paged_kv_cache",
    "attention",
    "block_table_from_csr",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "get_batch_indices_positions",
    "get_scheduler_metadata",
    "get_seq_lens",
    "kv_pages",
    "merge_state",
    "merge_states",
    "replace_sdpa",
    "scaled_dot_product_attention",
    "single_decode_with_kv_cache",
    "single_prefill_with_kv_cache",
]
