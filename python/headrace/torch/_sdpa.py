"""torch.nn.functional.scaled_dot_product_attention: a function of that signature, and the way for plain calls to us."""

from __future__ import annotations

import functools
import warnings
from types import TracebackType
from typing import Any, NamedTuple

import torch

from .._structs import CAUSAL_NONE, CAUSAL_TOP_LEFT
from . import _eager, _ops, _quick
from ._attention import random_dropout_state
from ._eager import Extras

IMPLEMENTATION = "headrace"


def _options(dropout_p: float, is_causal: bool, scale: float | None) -> tuple:
    mode = CAUSAL_TOP_LEFT if is_causal else CAUSAL_NONE
    return (scale, 0.0, dropout_p, -1, -1, 0, 0, mode, 0, False, False, False, False)


def _mask_extras(attn_mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> Extras:
    """attn_mask, which may broadcast and lack leading axes, as bias or mask of four axes."""
    if attn_mask.dim() > 4:
        raise ValueError(f"attn_mask.shape={tuple(attn_mask.shape)}: must have at most the axes of query")
    attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    batch, heads, seqlen_q, _ = query.shape
    try:
        attn_mask = attn_mask.expand(batch, heads, seqlen_q, key.shape[2])
    except RuntimeError:
        raise ValueError(
            f"attn_mask.shape={tuple(attn_mask.shape)}: must broadcast to "
            f"{(batch, heads, seqlen_q, key.shape[2])} ([batch, heads, seqlen_q, seqlen_k])"
        ) from None
    if attn_mask.dtype == torch.bool:
        return (None, None, None, None, attn_mask, None, None)
    return (None, None, None, attn_mask, None, None, None)


def _check_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> None:
    heads = query.shape[1]
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape[1] not in (1, heads) and not enable_gqa:
            raise ValueError(
                f"{name} has {tensor.shape[1]} heads and query {heads}: must be equal; pass enable_gqa=True for groups "
                "of query heads that share one"
            )


def _any_rank(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None, arguments: tuple
) -> torch.Tensor:
    """Two or three axes get leading ones; more than four become one batch axis."""
    ranks = {query.dim(), key.dim(), value.dim()}
    if len(ranks) != 1 or min(ranks) < 2:
        raise ValueError(
            f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} axes: must have the same number "
            "of them, at least [seqlen, head_dim]"
        )
    if query.dim() < 4:
        extra = (None,) * (4 - query.dim())
        out = scaled_dot_product_attention(query[extra], key[extra], value[extra], attn_mask, *arguments)
        return out[(0,) * len(extra)]
    leading = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    q, k, v = (t.expand(*leading, *t.shape[-3:]).reshape(-1, *t.shape[-3:]) for t in (query, key, value))
    if attn_mask is not None and attn_mask.dim() > 3:
        attn_mask = attn_mask.expand(*leading, *attn_mask.shape[-3:]).reshape(-1, *attn_mask.shape[-3:])
    out = scaled_dot_product_attention(q, k, v, attn_mask, *arguments)
    return out.reshape(*leading, *out.shape[1:])


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
        attn_mask: bool (True takes part) or added to scores (dtype of query or float32); broadcasts to
            [..., num_heads, seqlen_q, seqlen_k].
        dropout_p: applied as given, also in evaluation.
        is_causal: query i sees keys j <= i: aligned top-left, as PyTorch does it.
        scale: default head_dim ** -0.5.
        enable_gqa: num_kv_heads may be a divisor of num_heads.

    Returns:
        [..., num_heads, seqlen_q, head_dim_v], in memory in the order of query's axes. A row that sees no key is 0.

    Raises:
        ValueError, NotImplementedError, MemoryError, RuntimeError: as attention().
    """
    settings = ("sdpa", is_causal, scale, enable_gqa)
    if attn_mask is None and not dropout_p:
        out = _quick.attention(query, key, value, settings)
        if out is not None:
            return out
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return _any_rank(query, key, value, attn_mask, (dropout_p, is_causal, scale, enable_gqa))
    heads = query.shape[1]
    if key.shape[1] != heads or value.shape[1] != heads:
        _check_heads(query, key, value, enable_gqa)
        if key.shape[1] != value.shape[1]:
            key, value = (t.expand(-1, heads, -1, -1) if t.shape[1] == 1 else t for t in (key, value))
    extras = None
    if attn_mask is not None:
        if is_causal:
            raise ValueError("attn_mask with is_causal=True: must not be given together; put both into the mask")
        extras = _mask_extras(attn_mask, query, key)
    state = random_dropout_state() if dropout_p else None
    options = _options(dropout_p, is_causal, scale)
    quick_settings = settings if extras is None and state is None else None
    return _ops.attention(
        query, key, value, extras, options, state, True, False, False, quick_settings=quick_settings
    )[0]  # fmt: skip


# ---- plain calls of PyTorch's own function ----


class _Layout(NamedTuple):
    """How PyTorch's own kernel lays its results out, which compiled graphs rely on; it differs between versions."""

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
    is_causal: bool,
    attn_mask: torch.Tensor | None,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse for PyTorch's flash operators, whose backward is PyTorch's own and takes this lse."""
    if dropout_p:
        raise NotImplementedError(
            f"dropout_p={dropout_p}: PyTorch's backward could not repeat headrace's mask; train with dropout_p=0, or "
            "remove headrace from scaled_dot_product_attention"
        )
    layout = _layout_of(operator)
    extras = None if attn_mask is None else _mask_extras(attn_mask, query, key)
    strides = torch.empty_like(query).stride() if layout.out_is_like_query else None
    options = _options(0.0, is_causal, scale)
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
    return _flash_forward(operator, query, key, value, dropout_p, is_causal, attn_mask, scale)


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
        raise NotImplementedError("return_debug_mask: headrace makes no debug mask; leave it out")
    operator = torch.ops.aten._scaled_dot_product_flash_attention.default
    out, lse = _flash_forward(operator, query, key, value, dropout_p, is_causal, None, scale)
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    unused = torch.zeros((), dtype=torch.uint64, device=query.device)
    debug_mask = query.new_empty(0)
    return out, lse, None, None, query.shape[2], key.shape[2], state, unused, debug_mask


class SdpaHandle:
    """Plain scaled_dot_product_attention calls reach headrace until remove(), or the end of the with block."""

    def __init__(self) -> None:
        self._library: torch.library.Library | None = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid")  # which is what was asked for
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
    """Lets plain torch.nn.functional.scaled_dot_product_attention calls reach headrace, forward only.

    Replaces the kernels behind PyTorch's flash backend, on the CPU and CUDA: PyTorch decides as before which calls
    take that backend (on the CPU, calls with an attn_mask too), and keeps its own backward, which works with these
    results. From PyTorch 2.11 on the same is torch.nn.attention.activate_flash_attention_impl("headrace").

    Returns:
        A handle: remove() ends it, and so does a `with` block.

    Raises:
        Nothing itself; calls that reach headrace what scaled_dot_product_attention() does, and NotImplementedError with
        dropout_p, whose mask PyTorch's backward could not repeat.
    """
    return SdpaHandle()


def _offer_to_pytorch() -> None:
    """Puts our name on PyTorch's list of flash implementations, where it has one; the user activates it."""
    import torch.nn.attention

    register = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if register is not None:
        register(IMPLEMENTATION, register_fn=replace_sdpa)


_offer_to_pytorch()
