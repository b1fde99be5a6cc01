"""attention(): everything that the contract has, on PyTorch tensors."""

from __future__ import annotations

from typing import Any

import torch

from .._arguments import is_heads_first, make_options
from . import _ops
from ._eager import Extras


def random_dropout_state() -> torch.Tensor:
    """(seed, offset) from PyTorch's generator of the CPU, so that torch.manual_seed() decides and no device waits."""
    return torch.randint(0, 1 << 62, (2,), dtype=torch.int64, device="cpu")


def given_dropout_state(seed: int, offset: int) -> torch.Tensor:
    """Numbers of 64 bits without sign, as the library takes them, in a tensor of numbers with sign."""
    return torch.tensor([n - (1 << 64) if n >> 63 else n for n in (seed, offset)], dtype=torch.int64)


def max_length(name: str, given: int | None, cu_seqlens: torch.Tensor | None) -> int | None:
    if given is not None or cu_seqlens is None:
        return given
    if cu_seqlens.is_cuda:
        raise ValueError(
            f"max_seqlen_{name}: not given; pass the longest sequence: reading cu_seqlens_{name} would wait for the GPU"
        )
    return int(cu_seqlens.diff().max()) if len(cu_seqlens) > 1 else 0


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    num_splits: int = 0,
    strict_rows: bool = False,
    strict_fallback: bool = False,
    checked: bool = False,
    return_lse: bool = False,
    return_probs: bool = False,
    layout: str = "bshd",
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Exact attention: softmax(softmax_scale * q k^T + ...) v.

    All tensors on one device. Any strides; q, k and v are copied where their last axis has gaps.

    Args:
        q: [batch, seqlen_q, num_heads, head_dim], with layout="bhsd" [batch, num_heads, seqlen_q, head_dim] (k, v
            and out likewise), ragged (cu_seqlens given) [total_q, num_heads, head_dim]; float32, float16, bfloat16
            or float64.
        k: [batch, seqlen_k, num_kv_heads, head_dim]; query head h reads kv head h // (num_heads // num_kv_heads).
        v: [batch, seqlen_k, num_kv_heads, head_dim_v]; head dims are 1 to 576.
        softmax_scale: default head_dim ** -0.5.
        causal: True or "bottom-right": query i sees keys j <= i + seqlen_k - seqlen_q; "top-left": j <= i.
        window: (left, right), keys visible beside the diagonal, inclusive; -1 or None is open.
        softcap: c > 0 makes a score s into c * tanh(s / c).
        alibi_slopes: float32 [num_heads] or [batch, num_heads].
        bias: added to scores; dtype of q or float32; [batch, num_heads, seqlen_q, seqlen_k], any axis may be 1;
            ragged [num_heads, total_q, max_seqlen_k].
        mask: bool, True keeps; shaped like bias.
        tree_mask: uint32 or int32 [batch, seqlen_q, words]: bit j of row i says whether query i sees key
            seqlen_k - seqlen_q + j.
        sinks: float32 [num_heads], a logit that joins the denominator only.
        dropout_p: probability of dropping. dropout_seed: None draws from torch's CPU generator; with numbers the mask
            is the same on every device.
        cu_seqlens_q, cu_seqlens_k: int32 [batch + 1]: a ragged batch. max_seqlen_q, max_seqlen_k: upper bounds of
            its lengths; may be left out on the CPU.
        num_splits: key splits; 0: by the rule, which depends on a sequence's own lengths alone.
        strict_rows: a row has the same bits whatever seqlen_q it came with.
        strict_fallback: NotImplementedError instead of a FallbackWarning where only the last kernel would run.
        checked: lengths on a GPU are validated on the host first (synchronises).
        return_lse: also float32 [batch, num_heads, seqlen_q] (ragged [num_heads, total_q]), natural logarithm.
        return_probs: also float32 [batch, num_heads, seqlen_q, seqlen_k], for debugging small shapes.

    Returns:
        out, of the dtype of q; with return_lse or return_probs a tuple (out, lse, probs) without what was not asked
        for. A row that sees no key is 0, its lse -inf.

    Raises:
        ValueError: an argument broke a rule; the text names it, its value, the rule and the remedy.
        NotImplementedError: valid, but no kernel of this build and device takes it.
        MemoryError, RuntimeError: the host is out of memory, the device failed.
    """
    options = make_options(
        softmax_scale=softmax_scale,
        causal=causal,
        window=window,
        softcap=softcap,
        dropout_p=dropout_p,
        max_seqlen_q=max_length("q", max_seqlen_q, cu_seqlens_q),
        max_seqlen_k=max_length("k", max_seqlen_k, cu_seqlens_k),
        num_splits=num_splits,
        strict_rows=strict_rows,
        strict_fallback=strict_fallback,
        checked=checked,
    )
    given: Extras = (cu_seqlens_q, cu_seqlens_k, alibi_slopes, bias, mask, tree_mask, sinks)
    extras = None if all(t is None for t in given) else given
    state = None
    if dropout_p:
        state = random_dropout_state() if dropout_seed is None else given_dropout_state(dropout_seed, dropout_offset)
    out, lse, probs = _ops.attention(
        q, k, v, extras, tuple(options), state, is_heads_first(layout), return_lse, return_probs
    )
    if not return_lse and not return_probs:
        return out
    results: tuple[Any, ...] = (out,) + ((lse,) if return_lse else ()) + ((probs,) if return_probs else ())
    return results
