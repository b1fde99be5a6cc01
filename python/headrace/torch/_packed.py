"""The functions of the flash-attn package whose q, k and v, or k and v, are one tensor."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from . import _ops
from ._attention import max_length
from ._backward import unpacked
from ._eager import Extras, extras_of
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


@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    *, return_attn_probs: Literal[True],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Any: ...  # fmt: skip
def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn.flash_attn_varlen_kvpacked_func: flash_attn_varlen_func with k and v in one tensor, without copies.

    Args:
        q: [total_q, num_heads, head_dim]; float16, bfloat16, float32 or float64, any strides.
        kv: [total_k, 2, num_kv_heads, head_dim].
        The others, the result and the errors: as flash_attn_varlen_func.
    """
    check_tensors(("q", "kv"), (q, kv), 2)
    if kv.dim() != 4 or kv.shape[1] != 2:
        raise ValueError(f"kv.shape={tuple(kv.shape)}: must be [total_k, 2, num_kv_heads, head_dim]")
    lengths = (max_length("q", max_seqlen_q, cu_seqlens_q) or 0, max_length("k", max_seqlen_k, cu_seqlens_k) or 0)
    extras = extras_of(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, alibi_slopes=alibi_slopes)
    return _packed_varlen(
        Packed(q, kv), extras, lengths, dropout_p, softmax_scale, causal, window_size, softcap, deterministic,
        return_attn_probs,
    )  # fmt: skip


@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    *, return_attn_probs: Literal[True],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Window = ...,
    softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Any: ...  # fmt: skip
def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn.flash_attn_varlen_qkvpacked_func: flash_attn_varlen_func with q, k, v in one tensor, without copies.

    Args:
        qkv: [total, 3, num_heads, head_dim]; float16, bfloat16, float32 or float64, any strides.
        cu_seqlens: int32 [batch + 1], on the device of qkv, from 0 to total.
        max_seqlen: upper bound of the lengths; optional on the CPU.
        The others, the result and the errors: as flash_attn_varlen_func.
    """
    check_tensors(("qkv",), (qkv,), 1)
    if qkv.dim() != 4 or qkv.shape[1] != 3:
        raise ValueError(f"qkv.shape={tuple(qkv.shape)}: must be [total, 3, num_heads, head_dim]")
    length = max_length("q", max_seqlen, cu_seqlens) or 0
    extras = extras_of(cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, alibi_slopes=alibi_slopes)
    return _packed_varlen(
        Packed(None, qkv), extras, (length, length), dropout_p, softmax_scale, causal, window_size, softcap,
        deterministic, return_attn_probs,
    )  # fmt: skip


def _packed_varlen(
    operands: Packed,
    extras: Extras,
    max_lengths: tuple[int, int],
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int | None, int | None],
    softcap: float,
    deterministic: bool,
    return_attn_probs: bool,
) -> Any:
    parts = operands if _ops.needs_gradient(*operands) else unpacked(*operands)
    return run(
        parts, extras, dropout_p, softmax_scale, causal, window_size, softcap, *max_lengths, 0, deterministic,
        return_attn_probs,
    )  # fmt: skip
