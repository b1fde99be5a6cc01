"""torch.nn.functional.scaled_dot_product_attention: a function of that signature, and a hook for PyTorch's own."""

from __future__ import annotations

import functools
import warnings
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

from .._structs import CAUSAL_BOTTOM_RIGHT, CAUSAL_NONE, CAUSAL_TOP_LEFT
from . import _eager, _nested, _ops, _quick
from ._attention import random_dropout_state
from ._eager import Extras, extras_of
from ._tensors import PLAIN, PLAIN_OR_NONE, check_tensors, refuse_opaque

IMPLEMENTATION = "headrace"
_OPERANDS = ("query", "key", "value")


def _options(dropout_p: float, causal: int, scale: float | None) -> tuple:
    return (scale, 0.0, dropout_p, -1, -1, 0, 0, causal, 0, False, False, False, False, 0)


def _mask_extras(attn_mask: torch.Tensor, q_sizes: torch.Size, k_sizes: torch.Size) -> Extras:
    """Expands attn_mask, which may broadcast and lack leading axes, to a bias or mask of four axes."""
    sizes = (q_sizes[0], q_sizes[1], q_sizes[2], k_sizes[2])
    try:
        attn_mask = attn_mask.expand(sizes)
    except RuntimeError:
        raise ValueError(
            f"attn_mask.shape={tuple(attn_mask.shape)}: must broadcast to {sizes} "
            "([batch, heads, seqlen_q, seqlen_k]); reshape it"
        ) from None
    if attn_mask.dtype == torch.bool:
        return extras_of(mask=attn_mask)
    return extras_of(bias=attn_mask)


def _check_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    sizes = {t.shape[1] for t in (query, key, value)} - {1}
    if len(sizes) > 1:
        raise ValueError(
            f"query, key and value have {query.shape[1]}, {key.shape[1]} and {value.shape[1]} heads: must be equal or "
            "1; pass enable_gqa=True for groups of query heads that share a KV head"
        )


def _broadcast(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None, rest: tuple
) -> torch.Tensor:
    """Broadcasts leading axes as PyTorch does: fewer than four axes are padded, more than four are merged."""
    ranks = [t.dim() for t in (query, key, value)]
    if min(ranks) < 2:
        raise ValueError(
            f"query, key and value have {ranks[0]}, {ranks[1]} and {ranks[2]} axes: must have at least two each, "
            "[seqlen, head_dim]; add the missing axes"
        )
    operands = [t[(None,) * max(4 - t.dim(), 0)] for t in (query, key, value)]
    shapes = [tuple(t.shape) for t in operands]
    try:
        leading = torch.broadcast_shapes(*(shape[:-3] for shape in shapes))
    except RuntimeError:
        raise ValueError(
            f"query, key and value of shapes {', '.join(map(str, shapes))}: axes before the heads must be equal or 1; "
            "expand them"
        ) from None
    q, k, v = (t.expand(*leading, *t.shape[-3:]).flatten(0, -4) for t in operands)
    if attn_mask is not None and attn_mask.dim() > 3:
        attn_mask = attn_mask.expand(*leading, *attn_mask.shape[-3:]).flatten(0, -4)
    out = _attend(q, k, v, attn_mask, *rest)
    return out.reshape(*leading, *out.shape[1:])[(0,) * max(4 - max(ranks), 0)]


def _without_head_dim(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None, rest: tuple
) -> torch.Tensor:
    """Replaces a head_dim of 0, where all scores are 0 or the result is empty, by one column of zeros."""
    dropout_p, causal, scale, *others = rest
    if query.shape[-1] == 0:
        query, key, scale = torch.nn.functional.pad(query, (0, 1)), torch.nn.functional.pad(key, (0, 1)), 1.0
    head_dim_v = value.shape[-1]
    if head_dim_v == 0:
        value = torch.nn.functional.pad(value, (0, 1))
    out = _attend(query, key, value, attn_mask, dropout_p, causal, scale, *others)
    return out if head_dim_v else out[..., :0]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    causal: int,
    scale: float | None,
    enable_gqa: bool,
    quick_settings: tuple | None = None,
) -> torch.Tensor:
    q_sizes, k_sizes, v_sizes = query.shape, key.shape, value.shape
    rest = (dropout_p, causal, scale, enable_gqa)
    if not (len(q_sizes) == len(k_sizes) == len(v_sizes) == 4 and q_sizes[0] == k_sizes[0] == v_sizes[0]):
        return _broadcast(query, key, value, attn_mask, rest)
    if not (q_sizes[3] and v_sizes[3]):
        return _without_head_dim(query, key, value, attn_mask, rest)
    heads = q_sizes[1]
    if not (heads == k_sizes[1] == v_sizes[1]):
        if not enable_gqa:
            _check_heads(query, key, value)
            heads = max(heads, k_sizes[1], v_sizes[1])
            query = query.expand(-1, heads, -1, -1)
        if k_sizes[1] != v_sizes[1]:
            key, value = (t.expand(-1, heads, -1, -1) if t.shape[1] == 1 else t for t in (key, value))
    if dropout_p == 1:
        out = _attend(query, key, value, attn_mask, 0.0, *rest[1:])
        return out.masked_fill(torch.ones((), dtype=torch.bool, device=out.device), 0.0)
    extras = None if attn_mask is None else _mask_extras(attn_mask, query.shape, k_sizes)
    state = random_dropout_state() if dropout_p else None
    settings = quick_settings if extras is None and state is None else None
    options = _options(dropout_p, causal, scale)
    return _ops.attention(query, key, value, extras, options, state, True, False, False, settings)[0]


def _causal_of(bias: CausalBias, query: torch.Tensor, key: torch.Tensor) -> int:
    """Reads the attributes of a CausalBias; its memory is never written."""
    if (bias.seq_len_q, bias.seq_len_kv) != (query.shape[-2], key.shape[-2]):
        raise ValueError(
            f"attn_mask is a CausalBias of {bias.seq_len_q} queries and {bias.seq_len_kv} keys: must be of "
            f"{query.shape[-2]} and {key.shape[-2]} like query and key; create one of those sizes"
        )
    return CAUSAL_TOP_LEFT if bias.variant == CausalVariant.UPPER_LEFT else CAUSAL_BOTTOM_RIGHT


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """PyTorch's scaled_dot_product_attention, computed by headrace.

    Args:
        query: [..., num_heads, seqlen_q, head_dim]; float16, bfloat16, float32 or float64, any strides.
        key: [..., num_kv_heads, seqlen_k, head_dim]. value: [..., num_kv_heads, seqlen_k, head_dim_v].
            Axes before seqlen broadcast, even if a tensor has fewer axes. Nested tensors of layout torch.jagged,
            [batch, num_heads, seqlen (ragged), head_dim], run as ragged batches.
        attn_mask: bool (True = keep) or added to the scores (dtype of query or float32); broadcasts to
            [..., num_heads, seqlen_q, seqlen_k]. Or a causal bias of torch.nn.attention.bias, which kernels apply
            without a mask tensor: causal_upper_left() or causal_lower_right(). Must be None for nested tensors.
        dropout_p: applied as given, also in evaluation; 1 gives zeros.
        is_causal: query i sees keys j <= i (top-left, as in PyTorch). Not with attn_mask.
        scale: default head_dim ** -0.5.
        enable_gqa: num_kv_heads may be a divisor of num_heads.

    Returns:
        [..., num_heads, seqlen_q, head_dim_v], with the axis order of query in memory; nested if query is. A row
        that sees no key is 0.

    Raises:
        ValueError, TypeError, NotImplementedError, MemoryError: as attention().
        RuntimeError: as attention(), and as PyTorch for attn_mask with is_causal.
    """
    settings = ("sdpa", is_causal, scale, enable_gqa)
    if attn_mask is None and not dropout_p:
        out = _quick.attention(query, key, value, settings)
        if out is not None:
            return out
    causal = CAUSAL_TOP_LEFT if is_causal else CAUSAL_NONE
    if (
        type(query) not in PLAIN
        or type(key) not in PLAIN
        or type(value) not in PLAIN
        or type(attn_mask) not in PLAIN_OR_NONE
        or query.is_nested
        or key.is_nested
        or value.is_nested
        or (attn_mask is not None and attn_mask.is_nested)
    ):
        if _nested.is_any_nested(query, key, value):
            return _nested.attention(query, key, value, attn_mask, dropout_p, causal, scale, enable_gqa)
        check_tensors(_OPERANDS, (query, key, value), len(_OPERANDS))
        if isinstance(attn_mask, CausalBias):
            if is_causal:
                raise ValueError("attn_mask is a CausalBias: must not be combined with is_causal=True; omit is_causal")
            causal, attn_mask = _causal_of(attn_mask, query, key), None
        check_tensors(("attn_mask",), (attn_mask,), 0)
    if attn_mask is not None and is_causal:
        raise RuntimeError("attn_mask with is_causal=True: must not be given together; merge both into attn_mask")
    return _attend(query, key, value, attn_mask, dropout_p, causal, scale, enable_gqa, settings)


# ---- PyTorch's own function ----


class _Layout(NamedTuple):
    """The output layout of PyTorch's own kernel, which compiled graphs rely on; it differs between versions."""

    out_is_like_query: bool
    lse_is_transposed: bool


@functools.cache
def _layout_of(operator: Any) -> _Layout:
    query = torch.empty((2, 3, 5, 8), device="meta", dtype=torch.float16)
    out, lse, *_ = operator(query, query, query)
    return _Layout(out.stride() == query.stride(), not lse.is_contiguous())


def _flash_forward(
    operator: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    causal: int,
    attn_mask: torch.Tensor | None,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse for PyTorch's flash operators. PyTorch's own backward uses this lse."""
    refuse_opaque((*_OPERANDS, "attn_mask"), (query, key, value, attn_mask))
    if dropout_p:
        raise NotImplementedError(
            f"dropout_p={dropout_p}: PyTorch's backward cannot reproduce headrace's mask; train with dropout_p=0, or "
            "remove headrace from scaled_dot_product_attention"
        )
    layout = _layout_of(operator)
    extras = None if attn_mask is None else _mask_extras(attn_mask, query.shape, key.shape)
    strides = torch.empty_like(query).stride() if layout.out_is_like_query else None
    options = _options(0.0, causal, scale)
    out, lse, _ = _eager.forward(query, key, value, extras, options, None, True, True, False, strides)
    assert lse is not None
    return out, lse.transpose(1, 2).contiguous().transpose(1, 2) if layout.lse_is_transposed else lse


def _flash_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    causal = CAUSAL_TOP_LEFT if is_causal else CAUSAL_NONE
    return _flash_forward(operator, query, key, value, dropout_p, causal, attn_mask, scale)


def _flash_cuda(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if return_debug_mask:
        raise NotImplementedError("return_debug_mask: headrace returns no debug mask; leave it out")
    operator = torch.ops.aten._scaled_dot_product_flash_attention.default
    # This operator's is_causal is bottom-right; PyTorch calls it with top-left masks only if scores are square.
    causal = CAUSAL_BOTTOM_RIGHT if is_causal else CAUSAL_NONE
    out, lse = _flash_forward(operator, query, key, value, dropout_p, causal, None, scale)
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    unused = torch.zeros((), dtype=torch.uint64, device=query.device)
    debug_mask = query.new_empty(0)
    return out, lse, None, None, query.shape[2], key.shape[2], state, unused, debug_mask


class SdpaHandle:
    """Routes plain scaled_dot_product_attention calls to headrace until remove() or the end of the with block."""

    def __init__(self) -> None:
        self._library: torch.library.Library | None = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid")  # overriding is the purpose
            self._library.impl("_scaled_dot_product_flash_attention_for_cpu", _flash_cpu, "CPU")
            self._library.impl("_scaled_dot_product_flash_attention", _flash_cuda, "CUDA")

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def __enter__(self) -> SdpaHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def replace_sdpa() -> SdpaHandle:
    """Routes plain torch.nn.functional.scaled_dot_product_attention calls to headrace, forward only.

    Replaces the kernels of PyTorch's flash backend, on the CPU and CUDA. PyTorch still decides which calls use that
    backend (on the CPU also calls with an attn_mask) and keeps its own backward, which works with these results. From
    PyTorch 2.11 on, torch.nn.attention.activate_flash_attention_impl("headrace") does the same.

    Returns:
        A handle: remove() or the end of a `with` block restores PyTorch's kernels.

    Raises:
        Nothing itself. Calls routed to headrace raise the errors of scaled_dot_product_attention(), and
        NotImplementedError with dropout_p, whose mask PyTorch's backward cannot reproduce.
    """
    return SdpaHandle()


def _offer_to_pytorch() -> None:
    """Registers "headrace" as a flash implementation, if this PyTorch has that list; the user activates it."""
    import torch.nn.attention

    register = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if register is not None:
        register(IMPLEMENTATION, register_fn=replace_sdpa)


_offer_to_pytorch()
