"""The functions of the flash-attn package whose q, k and v, or k and v, are one tensor."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from . import _ops
from ._backward import unpacked
from ._eager import extras_of
from ._flash_attn import Packed, Tensor, Window, flash_attn_func, run
from ._tensors import check_tensors


def _packed(
    operands: Packed,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int | None, int | None],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
) -> Any:
    if not _ops.needs_gradient(*operands):
        q, k, v = unpacked(*operands)
        return flash_attn_func(
            q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
            return_attn_probs,
        )  # fmt: skip
    extras = None if alibi_slopes is None else extras_of(alibi_slopes=alibi_slopes)
    return run(
        operands, extras, dropout_p, softmax_scale, causal, window_size, softcap, 0, 0, 0, deterministic,
        return_attn_probs,
    )  # fmt: skip


@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    *, return_attn_probs: Literal[True],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Any: ...  # fmt: skip
def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn.flash_attn_kvpacked_func: flash_attn_func with k and v in one tensor, without copies; the gradient of
    kv is written in place, too.

    Args:
        q: [batch, seqlen_q, num_heads, head_dim]; float16, bfloat16, float32 or float64, any strides.
        kv: [batch, seqlen_k, 2, num_kv_heads, head_dim].
        The others, the result and the errors: as flash_attn_func.
    """
    check_tensors(("q", "kv"), (q, kv), 2)
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise ValueError(f"kv.shape={tuple(kv.shape)}: must be [batch, seqlen_k, 2, num_kv_heads, head_dim]")
    return _packed(
        Packed(q, kv), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    *, return_attn_probs: Literal[True],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Any: ...  # fmt: skip
def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn.flash_attn_qkvpacked_func: flash_attn_func with q, k and v in one tensor, without copies; the gradient
    of qkv is written in place, too, which saves autograd a copy.

    Args:
        qkv: [batch, seqlen, 3, num_heads, head_dim]; float16, bfloat16, float32 or float64, any strides.
        The others, the result and the errors: as flash_attn_func.
    """
    check_tensors(("qkv",), (qkv,), 1)
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise ValueError(f"qkv.shape={tuple(qkv.shape)}: must be [batch, seqlen, 3, num_heads, head_dim]")
    return _packed(
        Packed(None, qkv), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip
