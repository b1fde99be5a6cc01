"""What the wrappers under FlashInfer's names share: checks of arguments, page tables, and the call itself."""

from __future__ import annotations

import math
from typing import Any, Union

import torch

from .._arguments import make_options
from .._plans import Options
from .._structs import DATA_WORD
from . import _eager, _ops
from ._eager import Extras, extras_of, is_watched
from ._kv_cache import _int32
from ._kv_pages import _check_csr
from ._tensors import PLAIN, check_tensors

Pages = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]
DType = Union[str, torch.dtype, None]
_LOG2_E = 1 / math.log(2)

# Arguments of FlashInfer that change no result here. Rows have the same bits in every batch, so splits need no setting;
# products of q and k are summed in float32; rope_scale and rope_theta are of a pos_encoding_mode that is refused.
_UNUSED = frozenset(
    "backend disable_split_kv enable_pdl fixed_split_size rope_scale rope_theta use_fp16_qk_reduction "
    "use_fp16_softmax use_tensor_cores".split()
)
_MULTI_ITEM = "items that share a prefix are not scored together here; pass a sequence for each item"
_IN_TABLE = "the page table says it; leave it out"
_CUSTOM = "kernels are not customised here; leave it out"
_MASK = "a batch has no masks here; call single_prefill_with_kv_cache(custom_mask=) for each sequence"
_REFUSED = {
    "custom_mask": _MASK,
    "packed_custom_mask": "masks are not packed here; pass bool to single_prefill_with_kv_cache(custom_mask=)",
    "custom_mask_buf": _MASK,
    "mask_indptr_buf": _MASK,
    "prefix_len_ptr": _MULTI_ITEM,
    "token_pos_in_items_ptr": _MULTI_ITEM,
    "token_pos_in_items_len": _MULTI_ITEM,
    "max_item_len_ptr": _MULTI_ITEM,
    "seq_lens": _IN_TABLE,
    "seq_lens_q": _IN_TABLE,
    "block_tables": _IN_TABLE,
    "v_indptr": "v has the offsets of k; leave it out",
    "o_indptr": "out has the offsets of q; leave it out",
    "window_right": "windows are open to the right up to the causal mask; use attention(window=)",
    "jit_args": _CUSTOM,
    "jit_kwargs": _CUSTOM,
    "kv_cache_sf": "there are no NVFP4 keys; use the quantised pages of headrace.KvCache with attention()",
    "skip_softmax_threshold_scale_factor": "attention is exact here; leave it out",
    "uses_spcompress": "attention is exact here; leave it out",
    "o_scale": "out is not quantised; leave it out and divide out",
    "scale_q": "q has 16 or 32 bits; pass q * scale_q",
    "scale_k": "heads have no scales of their own here; use flash_attn_with_kvcache(k_descale=)",
    "scale_v": "heads have no scales of their own here; use flash_attn_with_kvcache(v_descale=)",
}


def check_rest(function: str, rest: dict[str, Any], args: tuple = ()) -> None:
    """FlashInfer's arguments that no parameter takes: refused unless they are unused, or have a default that is off."""
    if args:
        raise NotImplementedError(f"{function}(): {len(args)} more arguments: {_CUSTOM.replace('it', 'them')}")
    for name, value in rest.items():
        if name in _UNUSED or value is None or (name in _REFUSED and isinstance(value, (bool, int)) and not value):
            continue
        if name not in _REFUSED:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        what = f"{type(value).__name__} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise NotImplementedError(f"{name}={what}: {_REFUSED[name]}")


def check_layout(kv_layout: str) -> bool:
    """Whether heads come before keys."""
    if kv_layout not in ("NHD", "HND"):
        raise ValueError(f"kv_layout={kv_layout!r}: must be 'NHD' ([keys, heads, dim]) or 'HND' ([heads, keys, dim])")
    return kv_layout == "HND"


def check_encoding(pos_encoding_mode: str) -> None:
    if pos_encoding_mode != "NONE":
        raise NotImplementedError(
            f"pos_encoding_mode={pos_encoding_mode!r}: must be 'NONE'; rotate q and k before they are appended "
            "(headrace.kv_append, flash_attn_with_kvcache(rotary_cos=)), or use attention(alibi_slopes=)"
        )


def dtype_of(name: str, dtype: DType) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not isinstance(found, torch.dtype):
        raise ValueError(f"{name}={dtype!r}: must be a torch.dtype or its name, such as 'float16'")
    return found


def factor(name: str, scale: float | None) -> float:
    if isinstance(scale, torch.Tensor):
        raise NotImplementedError(f"{name} is a tensor, which would be read on the host at each call; pass a float")
    return 1.0 if scale is None else scale


def vector(name: str, tensor: torch.Tensor, size: int | None = None) -> torch.Tensor:
    check_tensors((name,), (tensor,), 1)
    if tensor.dim() != 1 or size not in (None, tensor.shape[0]):
        wanted = "1 axis" if size is None else f"shape ({size},), as the batch has"
        raise ValueError(f"{name}.shape={tuple(tensor.shape)}: must have {wanted}; reshape it")
    return _int32(name, tensor)


def check_tensor(
    name: str, tensor: torch.Tensor, shape: tuple, axes: str, dtype: Any, device: Any, why: str = ""
) -> None:
    """Shape entries of None are free."""
    is_right = len(shape) == tensor.dim() and all(n in (None, m) for n, m in zip(shape, tensor.shape))
    if not is_right or dtype not in (None, tensor.dtype) or tensor.device != device:
        sizes = ", ".join(str("any" if n is None else n) for n in shape)
        raise ValueError(
            f"{name}: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}: must be {axes}, ({sizes})"
            f"{'' if dtype is None else f', {dtype}'}, on {device}{why}"
        )


def _rounded(count: int) -> int:
    """At least `count`, by at most a quarter more: plans are kept by sizes, and a table's change at each step."""
    step = max(1 << max(count.bit_length() - 3, 0), 1)
    return -(-count // step) * step


def longest(*lengths: torch.Tensor) -> list[int]:
    """The maxima, with one read of a device at most."""
    maxima = [x.max() if x.numel() else x.new_zeros(()) for x in lengths]
    return torch.stack([x.to(maxima[0].device) for x in maxima]).tolist() if maxima else []


def pages_of(paged_kv_cache: Pages, heads_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v pages, [num_pages, page_size, num_kv_heads, head_dim]."""
    pair = paged_kv_cache
    if isinstance(pair, torch.Tensor):
        check_tensors(("paged_kv_cache",), (pair,), 1)
        if pair.dim() != 5 or pair.shape[1] != 2:
            raise ValueError(
                f"paged_kv_cache.shape={tuple(pair.shape)}: must be [num_pages, 2, page_size, num_kv_heads, head_dim], "
                "with kv_layout='HND' [num_pages, 2, num_kv_heads, page_size, head_dim]; or pass (k_pages, v_pages)"
            )
        pair = (pair[:, 0], pair[:, 1])
    elif not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"paged_kv_cache is a {type(pair).__name__}: must be a tensor or (k_pages, v_pages)")
    check_tensors(("paged_kv_cache[0]", "paged_kv_cache[1]"), tuple(pair), 2)
    for i, pages in enumerate(pair):
        if pages.dim() != 4:
            raise ValueError(f"paged_kv_cache[{i}].shape={tuple(pages.shape)}: must have 4 axes, [num_pages, ..]")
    k, v = pair
    return (k.transpose(1, 2), v.transpose(1, 2)) if heads_first else (k, v)


def _compute_into(entry: _eager.Entry, tensors: dict[str, torch.Tensor], extras: Extras) -> None:
    block = entry.plan.take_block()
    for name, tensor in tensors.items():
        block.words[DATA_WORD[name]] = tensor.data_ptr()
    _eager.write_extras(block.words, extras)
    _eager.run(entry, block)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extras: Extras,
    options: Options,
    v_scale: float,
    out: torch.Tensor | None,
    lse: torch.Tensor | None,
    return_lse: bool,
) -> Any:
    """q [batch, seqlen, heads, dim] or ragged, [total_q, heads, dim]. Results have their rows in one axis. An out that
    is contiguous is written in place."""
    shape = (q.shape[:-2].numel(), q.shape[-2], v.shape[-1])
    check_tensors(("out", "lse"), (out, lse), 0)
    if lse is not None and not return_lse:
        raise ValueError("lse: given without return_lse; pass return_lse=True, or leave lse out")
    if out is not None:
        check_tensor("out", out, shape, "[rows, num_qo_heads, head_dim]", q.dtype, q.device)
    if lse is not None:
        lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        check_tensor("lse", lse, shape[:2], "[rows, num_qo_heads]", lse_dtype, q.device)
    natural: torch.Tensor | None
    if (
        out is not None
        and not is_watched()
        and PLAIN.issuperset(map(type, (q, k, v, out)))
        and _ops._are_memory(extras)
        and out.is_contiguous()
        and not (out.data_ptr() & 15 or out.is_neg() or out.is_meta)
        and out.data_ptr() != q.data_ptr()
    ):
        entry, q, k, v = _eager.prepare(q, k, v, extras, options, False, return_lse, False)
        natural = None if entry.lse is None else torch.empty_like(entry.lse)
        tensors = {"q": q, "k": k, "v": v, "out": out}
        _compute_into(entry, tensors if natural is None else {**tensors, "lse": natural}, extras)
    else:
        result, natural, _ = _ops.attention(q, k, v, extras, tuple(options), None, False, return_lse, False)
        out = result.view(shape) if out is None else out.copy_(result.view(shape))
    if v_scale != 1:
        out.mul_(v_scale)
    if not return_lse or natural is None:
        return out
    if lse is None:
        lse = natural.new_empty(shape[:2])
    return out, torch.mul(natural.transpose(-1, -2).reshape(shape[:2]), _LOG2_E, out=lse)


class Wrapper:
    """What the wrappers share: buffers of a page table, and facts of a plan."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor | None,
        kv_layout: str,
        use_cuda_graph: bool,
        buffers: dict[str, torch.Tensor | None],
        rest: dict[str, Any],
    ) -> None:
        check_rest(type(self).__name__, rest)
        self._heads_first = check_layout(kv_layout)
        self._use_cuda_graph = use_cuda_graph
        self._tables: dict[str, torch.Tensor] = {}
        self._options: Options | None = None
        self._bounds: tuple[int | None, int | None] | None = None
        self._scale = 1.0
        self._batch = 0
        self._q_len: int | None = None  # of each sequence; None: qo_indptr has them
        device = None if float_workspace_buffer is None else float_workspace_buffer.device
        for name, buffer in buffers.items() if use_cuda_graph else ():
            if buffer is None:
                raise ValueError(f"{name}: not given, but use_cuda_graph is; pass an int32 tensor for graphs to read")
            check_tensors((name,), (buffer,), 1)
            device = device or buffer.device
            check_tensor(name, buffer, (None,), "[entries]", torch.int32, device)
            if not buffer.is_contiguous():
                raise ValueError(f"{name}.stride()={buffer.stride()}: must be (1,); pass a buffer without gaps")
            self._tables[name] = buffer
        self.device = device

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._use_cuda_graph

    def reset_workspace_buffer(self, *buffers: torch.Tensor) -> None:
        """FlashInfer's. Workspaces come from PyTorch's allocator, so there is nothing to do."""

    def _keep(self, name: str, values: torch.Tensor, capacity: int, non_blocking: bool) -> torch.Tensor:
        """The tensor that run() reads: a new one, or the buffer of that name with the values at its start."""
        count = values.shape[0]
        table = self._tables.get(name) if self._use_cuda_graph else None
        if table is None:
            table = torch.empty(capacity, dtype=torch.int32, device=self.device)
        elif table.shape[0] < count or (table.shape[0] > count and "indices" not in name):
            size = "at most" if "indices" in name else "equal to"
            raise ValueError(
                f"{name}: {count} entries of this plan: must be {size} {table.shape[0]}, those of the buffer that "
                "graphs read; make a wrapper with larger buffers, or one for each batch"
            )
        table[:count].copy_(values, non_blocking=non_blocking)
        self._tables[name] = table
        return table

    def _set(
        self,
        heads: tuple[int, int, int, int],
        dtypes: tuple[Any, Any, Any],
        pos_encoding_mode: str,
        bounds: tuple[int | None, int | None],
        **options: Any,
    ) -> None:
        check_encoding(pos_encoding_mode)
        num_qo_heads, num_kv_heads, *_ = self._heads = heads
        if num_kv_heads < 1 or num_qo_heads % num_kv_heads:
            raise ValueError(
                f"num_qo_heads={num_qo_heads}: must be a multiple of num_kv_heads={num_kv_heads}; correct one of them"
            )
        of_q, of_kv, of_out = map(dtype_of, ("q_data_type", "kv_data_type", "o_data_type"), dtypes)
        self._q_dtype, self._kv_dtype = of_q, of_kv or of_q
        if of_out is not None and of_q is not None and of_out != of_q:
            raise NotImplementedError(f"o_data_type={of_out}: must be q_data_type={of_q}; leave it out and convert out")
        self._out_dtype = of_out
        if self._use_cuda_graph and self._bounds is not None:  # graphs have captured the bounds of the first plan
            for name, bound, limit in zip(("max_seqlen_q", "max_seqlen_k"), bounds, self._bounds):
                if bound is not None and limit is not None and bound > limit:
                    raise ValueError(
                        f"{name}={bound}: must be at most {limit}, that of the first plan, which graphs captured; make "
                        "the first plan with the largest one"
                    )
            bounds = self._bounds
        self._bounds = bounds
        scale, window_left, cap = (options[n] for n in ("sm_scale", "window_left", "logits_soft_cap"))
        self._scale = heads[2] ** -0.5 if scale is None else scale
        self._options = make_options(
            softmax_scale=scale, causal=options["causal"], window=(window_left, -1), softcap=cap or 0.0,
            dropout_p=0.0, max_seqlen_q=bounds[0], max_seqlen_k=bounds[1], num_splits=0, strict_rows=False,
            strict_fallback=False, checked=False,
        )  # fmt: skip

    def _planned(self, q: torch.Tensor, window_left: int | None, q_k: float) -> Options:
        """The options of a run, after the checks of q. q_k: what scores are multiplied by."""
        if self._options is None:
            raise RuntimeError("run() before plan(): must be planned first; call plan() once a step")
        check_tensors(("q",), (q,), 1)
        rows = None if self._q_len is None else self._batch * self._q_len
        shape = (rows, self._heads[0], self._heads[2])
        check_tensor("q", q, shape, "[rows, num_qo_heads, head_dim]", self._q_dtype, self.device, " as planned")
        if self._out_dtype not in (None, q.dtype):
            raise NotImplementedError(f"o_data_type={self._out_dtype}: must be that of q, {q.dtype}; convert out")
        options = self._options
        if q_k != 1:
            options = options._replace(softmax_scale=self._scale * q_k)
        if window_left is not None:
            options = options._replace(window_left=max(window_left, -1))
        if self._q_len is None and not options.max_seqlen_q:
            options = options._replace(max_seqlen_q=q.shape[0])
        return options


class PagedWrapper(Wrapper):
    """A batch of keys in pages."""

    def _set_pages(
        self, names: dict[str, str], tables: tuple, page_size: int, qo_indptr: Any, bounds: tuple, non_blocking: bool
    ) -> tuple[int | None, int | None]:
        """Copies the page table to the device, with the lengths that it says. Returns the bounds of lengths.

        Args:
            names: of the arguments of plan(), which errors name, and of their buffers.
        """
        of_plan, of_buffers = tuple(names), tuple(names.values())
        last_len = vector(of_plan[2], tables[2])
        batch = last_len.shape[0]
        first, indices = vector(of_plan[0], tables[0], batch + 1), vector(of_plan[1], tables[1])
        if page_size < 1:
            raise ValueError(f"page_size={page_size}: must be 1 or more; pass the keys of a page")
        if not (first.is_cuda or indices.is_cuda or last_len.is_cuda):
            used = indices[: max(int(first[-1]), 0)]
            _check_csr(first, used, first.diff(), last_len, page_size, None, of_plan)
        self.device = self.device or indices.device
        max_q, max_k = bounds
        lengths = [first.diff()] if max_k is None and not self._use_cuda_graph else []
        if qo_indptr is not None:
            qo_indptr = vector("qo_indptr", qo_indptr, batch + 1)
            lengths += [qo_indptr.diff()] if max_q is None and not self._use_cuda_graph else []
        maxima = longest(*lengths)
        if max_k is None and maxima:
            max_k = _rounded(maxima[0]) * page_size
        if max_q is None and maxima and qo_indptr is not None:
            max_q = maxima[-1]
        offsets = self._keep(of_buffers[0], first, batch + 1, non_blocking)
        self._keep(of_buffers[1], indices, _rounded(max(indices.shape[0], 1)), non_blocking)
        last_len = self._keep(of_buffers[2], last_len, batch, non_blocking)
        counts = offsets.diff()
        self._keep("seqused_k", torch.where(counts > 0, (counts - 1) * page_size + last_len, 0), batch, True)
        if qo_indptr is not None:
            self._keep("qo_indptr_buf", qo_indptr, batch + 1, non_blocking)
        self._batch, self._page_size = batch, page_size
        self._table_names = of_buffers
        return max_q, max_k

    def _cache(self, paged_kv_cache: Pages) -> tuple[torch.Tensor, torch.Tensor]:
        _, num_kv_heads, dim_qk, dim_v = self._heads
        k, v = pages_of(paged_kv_cache, self._heads_first)
        why = f", as planned (axes of kv_layout='NHD'; it is {'HND' if self._heads_first else 'NHD'!r})"
        for i, (pages, dim) in enumerate(((k, dim_qk), (v, dim_v))):
            axes, shape = "[num_pages, page_size, num_kv_heads, head_dim]", (None, self._page_size, num_kv_heads, dim)
            check_tensor(f"paged_kv_cache[{i}]", pages, shape, axes, self._kv_dtype, self.device, why)
        return k, v

    def _extras(self, **more: torch.Tensor | None) -> Extras:
        indptr, indices, _ = (self._tables[name] for name in self._table_names)
        return extras_of(block_table=indices, page_indptr=indptr, seqused_k=self._tables["seqused_k"], **more)

    @torch.no_grad()
    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: Pages,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        **rest: Any,
    ) -> Any:
        """Attention of one layer.

        Args:
            q: [batch * q_len_per_req, num_qo_heads, head_dim].
            paged_kv_cache: [num_pages, 2, page_size, num_kv_heads, head_dim], keys at 0; with kv_layout="HND" the axes
                of page_size and num_kv_heads change places; or (k_pages, v_pages) of 4 axes. Read in place. The dtype
                of q, or float8_e4m3fn.
            q_scale, k_scale, v_scale: numbers that q, k and v are to be multiplied by; scores and out are.
            out, lse: results go there. out is written in place if it is contiguous.
            window_left: that of plan() if None.
            sinks: float32 [num_qo_heads], logits that join the denominator, and so lse.
            rest: enable_pdl is unused; kv_cache_sf and skip_softmax_threshold_scale_factor are refused.

        Returns:
            out [rows, num_qo_heads, head_dim]; with return_lse (out, lse), lse float32 [rows, num_qo_heads] in base 2:
            log2(sum(exp(score))). A row without keys has 0 and -inf, with sinks, too.
        """
        check_rest("run", rest, args)
        options = self._planned(q, window_left, factor("q_scale", q_scale) * factor("k_scale", k_scale))
        k, v = self._cache(paged_kv_cache)
        named: dict[str, torch.Tensor | None] = {"sinks": sinks}
        if self._q_len is None:
            named["cu_seqlens_q"] = self._tables["qo_indptr_buf"]
        else:
            q = q.unflatten(0, (self._batch, self._q_len))
        extras = self._extras(**named)
        return attend(q, k, v, extras, options, factor("v_scale", v_scale), out, lse, return_lse)

    def run_return_lse(self, *args: Any, **options: Any) -> Any:
        """run() with return_lse."""
        return self.run(*args, **options, return_lse=True)


def either(ours: int | None, theirs: int | None) -> int | None:
    if ours is not None and theirs is not None:
        raise ValueError("max_seqlen_q, max_seqlen_k: given with FlashInfer's name of the same bound; pass one of them")
    return theirs if ours is None else ours
