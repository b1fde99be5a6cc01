"""FlashInfer's plan/run wrappers over keys in pages and ragged keys.

Names, shapes and conventions are those of FlashInfer 0.6 (flashinfer/decode.py, prefill.py): lse is in base 2
(include/flashinfer/attention/state.cuh), masks are aligned bottom-right, sm_scale is by default head_dim ** -0.5, and a
window_left of -1 is open. Nothing has a gradient, as there.
"""

from __future__ import annotations

from typing import Any

import torch

from ._eager import extras_of
from ._tensors import check_tensors
from ._wrapper_base import (
    DType,
    PagedWrapper,
    Wrapper,
    attend,
    check_rest,
    check_tensor,
    either,
    factor,
    longest,
    vector,
)


class BatchDecodeWithPagedKVCacheWrapper(PagedWrapper):
    """flashinfer.BatchDecodeWithPagedKVCacheWrapper: attention of the newest tokens to keys in pages.

    plan() once a step, run() for each layer, which reads nothing on the host and can be captured in a graph.

    Args:
        float_workspace_buffer: names the device by being there; else that of the page table. It is not written.
        kv_layout: "NHD" or "HND", the axes of pages.
        use_cuda_graph: plan() copies page tables into the buffers, and graphs that captured run() read them there. The
            batch is that of the buffers. Lengths are computed by plan(), so write the buffers by plan() alone.
        paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer: int32 [batch + 1], [the most
            entries of a page table], [batch]; used with use_cuda_graph.
        rest: use_tensor_cores and backend are unused; jit_args is refused.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor | None = None,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        **rest: Any,
    ) -> None:
        buffers = {
            "paged_kv_indptr_buffer": paged_kv_indptr_buffer,
            "paged_kv_indices_buffer": paged_kv_indices_buffer,
            "paged_kv_last_page_len_buffer": paged_kv_last_page_len_buffer,
        }
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, buffers, rest)

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: DType = None,
        kv_data_type: DType = None,
        o_data_type: DType = None,
        data_type: DType = None,
        sm_scale: float | None = None,
        non_blocking: bool = True,
        q_len_per_req: int = 1,
        max_seqlen_k: int | None = None,
        **rest: Any,
    ) -> None:
        """The page table and options of the next calls of run().

        Args:
            indptr: int32 or int64 [batch + 1], on any device: the pages of sequence b are indices[indptr[b] :
                indptr[b + 1]]. indices may have more entries.
            last_page_len: [batch], keys in the last page; ignored without pages.
            pos_encoding_mode: "NONE" alone.
            window_left: a query sees that many keys before its own; -1: all.
            q_data_type, kv_data_type: checked by run(); default: whatever run() is given. data_type: both.
            o_data_type: that of q.
            q_len_per_req: queries of each sequence, its last tokens, causal.
            max_seqlen_k: the most keys of a sequence. Default: the longest one of the table, for which a GPU is read
                once. With use_cuda_graph the first plan's bounds stay; the default is the size of the buffer.
            rest: unused: rope_scale, rope_theta, fixed_split_size, disable_split_kv. Refused: window_right, seq_lens,
                block_tables.

        Raises:
            ValueError, TypeError, NotImplementedError: on the CPU also offsets and lengths that break a rule, as
                block_table_from_csr(); on a GPU headrace.check() reports them.
        """
        check_rest("plan", rest)
        if q_len_per_req < 1:
            raise ValueError(f"q_len_per_req={q_len_per_req}: must be 1 or more, the queries of each sequence")
        names = dict(zip(("indptr", "indices", "last_page_len"), self._buffer_names))
        tables = (indptr, indices, last_page_len)
        bounds = self._set_pages(names, tables, page_size, None, (None, max_seqlen_k), non_blocking)
        self._q_len = q_len_per_req
        self._set(
            (num_qo_heads, num_kv_heads, head_dim, head_dim), (q_data_type or data_type, kv_data_type, o_data_type),
            pos_encoding_mode, bounds, causal=q_len_per_req > 1, sm_scale=sm_scale, window_left=window_left,
            logits_soft_cap=logits_soft_cap,
        )  # fmt: skip

    _buffer_names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper: the decode wrapper with use_cuda_graph."""

    def __init__(
        self,
        workspace_buffer: torch.Tensor | None,
        indptr_buffer: torch.Tensor,
        indices_buffer: torch.Tensor,
        last_page_len_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_tensor_cores: bool = False,
    ) -> None:
        buffers = (indptr_buffer, indices_buffer, last_page_len_buffer)
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, *buffers)


class BatchPrefillWithPagedKVCacheWrapper(PagedWrapper):
    """flashinfer.BatchPrefillWithPagedKVCacheWrapper: attention of several tokens a sequence to keys in pages.

    Arguments and methods: as BatchDecodeWithPagedKVCacheWrapper, with a buffer for qo_indptr. A custom_mask_buf and a
    mask_indptr_buf are refused.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor | None = None,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        **rest: Any,
    ) -> None:
        buffers = {
            "qo_indptr_buf": qo_indptr_buf,
            "paged_kv_indptr_buf": paged_kv_indptr_buf,
            "paged_kv_indices_buf": paged_kv_indices_buf,
            "paged_kv_last_page_len_buf": paged_kv_last_page_len_buf,
        }
        rest |= {"custom_mask_buf": custom_mask_buf, "mask_indptr_buf": mask_indptr_buf}
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, buffers, rest)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        head_dim_vo: int | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: DType = None,
        kv_data_type: DType = None,
        o_data_type: DType = None,
        non_blocking: bool = True,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        **rest: Any,
    ) -> None:
        """As the plan() of BatchDecodeWithPagedKVCacheWrapper, where they are not listed here.

        Args:
            qo_indptr: int32 or int64 [batch + 1]: the queries of sequence b are rows qo_indptr[b] to
                qo_indptr[b + 1] - 1 of q, and its last tokens.
            causal: query i of n sees keys j <= i + (keys) - n.
            max_seqlen_q, max_seqlen_k: the longest sequences; without one of them a GPU is read once. With
                use_cuda_graph the defaults are all rows of q and the size of the buffer.
            max_token_per_sequence, max_sequence_kv: FlashInfer's names of the two.
            rest: unused, besides those of the decode: use_fp16_qk_reduction. Refused: custom_mask, packed_custom_mask,
                prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len, max_item_len_ptr, seq_lens, seq_lens_q,
                block_tables.
        """
        check_rest("plan", rest)
        names = {
            "paged_kv_indptr": "paged_kv_indptr_buf",
            "paged_kv_indices": "paged_kv_indices_buf",
            "paged_kv_last_page_len": "paged_kv_last_page_len_buf",
        }
        tables = (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        given = (either(max_seqlen_q, max_token_per_sequence), either(max_seqlen_k, max_sequence_kv))
        bounds = self._set_pages(names, tables, page_size, qo_indptr, given, non_blocking)
        self._set(
            (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo or head_dim_qk),
            (q_data_type, kv_data_type, o_data_type), pos_encoding_mode, bounds, causal=causal, sm_scale=sm_scale,
            window_left=window_left, logits_soft_cap=logits_soft_cap,
        )  # fmt: skip


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """flashinfer.BatchPrefillWithRaggedKVCacheWrapper: attention of ragged batches, as flash_attn_varlen_func().

    Arguments and methods: as BatchPrefillWithPagedKVCacheWrapper; kv_layout is "NHD".
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor | None = None,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        kv_indptr_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        **rest: Any,
    ) -> None:
        if kv_layout != "NHD":
            raise ValueError(f"kv_layout={kv_layout!r}: must be 'NHD', [total_k, num_kv_heads, dim]; transpose k and v")
        buffers = {"qo_indptr_buf": qo_indptr_buf, "kv_indptr_buf": kv_indptr_buf}
        rest |= {"custom_mask_buf": custom_mask_buf, "mask_indptr_buf": mask_indptr_buf}
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, buffers, rest)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        *,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        q_data_type: DType = None,
        kv_data_type: DType = None,
        o_data_type: DType = None,
        non_blocking: bool = True,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        **rest: Any,
    ) -> None:
        """As the plan() of BatchPrefillWithPagedKVCacheWrapper, with kv_indptr [batch + 1]: the keys of sequence b are
        rows kv_indptr[b] to kv_indptr[b + 1] - 1 of k and v. v_indptr and o_indptr are refused, too."""
        check_rest("plan", rest)
        first_q = vector("qo_indptr", qo_indptr)
        first_k = vector("kv_indptr", kv_indptr, first_q.shape[0])
        self.device = self.device or first_q.device
        bounds = [either(max_seqlen_q, max_token_per_sequence), either(max_seqlen_k, max_sequence_kv)]
        if not self._use_cuda_graph:
            maxima = longest(*(x.diff() for x, bound in zip((first_q, first_k), bounds) if bound is None))
            bounds = [maxima.pop(0) if bound is None else bound for bound in bounds]
        for name, offsets in (("qo_indptr_buf", first_q), ("kv_indptr_buf", first_k)):
            self._keep(name, offsets, offsets.shape[0], non_blocking)
        self._set(
            (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo or head_dim_qk),
            (q_data_type, kv_data_type, o_data_type), pos_encoding_mode, (bounds[0], bounds[1]), causal=causal,
            sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap,
        )  # fmt: skip

    @torch.no_grad()
    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        **rest: Any,
    ) -> Any:
        """As the run() of BatchPrefillWithPagedKVCacheWrapper, with k [total_k, num_kv_heads, head_dim_qk] and v
        [total_k, num_kv_heads, head_dim_vo]. kv_cache_sf and o_scale are refused."""
        check_rest("run", rest, args)
        options = self._planned(q, None, factor("q_scale", q_scale) * factor("k_scale", k_scale))
        check_tensors(("k", "v"), (k, v), 2)
        for name, x, dim in (("k", k, self._heads[2]), ("v", v, self._heads[3])):
            shape = (None, self._heads[1], dim)
            check_tensor(name, x, shape, "[total_k, num_kv_heads, dim]", self._kv_dtype, self.device, " as planned")
        if not options.max_seqlen_k:
            options = options._replace(max_seqlen_k=k.shape[0])
        extras = extras_of(cu_seqlens_q=self._tables["qo_indptr_buf"], cu_seqlens_k=self._tables["kv_indptr_buf"])
        return attend(q, k, v, extras, options, factor("v_scale", v_scale), out, lse, return_lse)
