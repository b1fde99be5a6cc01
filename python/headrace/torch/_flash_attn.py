"""The functions of the flash-attn package: FlashAttention-2's arguments and results, FlashAttention-3's keywords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import torch

from .._arguments import window_sizes
from .._structs import CAUSAL_BOTTOM_RIGHT, CAUSAL_NONE
from . import _fa3, _ops, _quick, _segments
from ._attention import max_length, random_dropout_state
from ._backward import Parts, unpacked
from ._eager import Extras, extras_of
from ._probs import signed_probs

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Fa3(TypedDict, total=False):
        qv: torch.Tensor | None
        q_descale: torch.Tensor | None
        k_descale: torch.Tensor | None
        v_descale: torch.Tensor | None
        attention_chunk: int
        num_splits: int
        pack_gqa: bool | None
        sm_margin: int

    class _VarlenFa3(_Fa3, total=False):
        block_table: torch.Tensor | None
        seqused_q: torch.Tensor | None
        seqused_k: torch.Tensor | None


Tensor = torch.Tensor
Window = tuple[int | None, int | None]
_OPEN = (-1, -1)


class Packed(NamedTuple):
    """The arguments of unpacked()."""

    q: torch.Tensor | None
    packed: torch.Tensor


def run(
    operands: Parts | Packed,
    extras: Extras | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int | None, int | None],
    softcap: float,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_splits: int,
    deterministic: bool,
    return_attn_probs: bool,
    quick_settings: tuple | None = None,
) -> Any:
    left, right = _OPEN if window_size == _OPEN else window_sizes(window_size)
    mode = CAUSAL_BOTTOM_RIGHT if causal else CAUSAL_NONE
    options = (
        softmax_scale, softcap, dropout_p, left, right, max_seqlen_q, max_seqlen_k, mode, num_splits,
        False, False, False, deterministic, 0,
    )  # fmt: skip
    state = random_dropout_state() if dropout_p else None
    lse: torch.Tensor | None
    if isinstance(operands, Packed):
        out, lse = _ops.attention_packed(*operands, extras, options, state)
        q, k, v = unpacked(*operands)
    else:
        q, k, v = operands
        out, lse, _ = _ops.attention(
            q, k, v, extras, options, state, False, return_attn_probs, False, quick_settings
        )
    if not return_attn_probs:
        return out
    return out, lse, signed_probs(q, k, v, extras, options, state)


@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ..., **fa3: Unpack[_Fa3],
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    *, return_attn_probs: Literal[True], **fa3: Unpack[_Fa3],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ..., **fa3: Unpack[_Fa3],
) -> Any: ...  # fmt: skip
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    attention_chunk: int = 0,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Any:
    """flash_attn.flash_attn_func: softmax(softmax_scale * q k^T) v, causal aligned bottom-right.

    Args:
        q: [batch, seqlen_q, num_heads, head_dim]; float16, bfloat16, float32 or float64, any strides.
        k: [batch, seqlen_k, num_kv_heads, head_dim]; num_kv_heads divides num_heads.
        v: [batch, seqlen_k, num_kv_heads, head_dim_v].
        dropout_p: 0.0 in evaluation. softmax_scale: default head_dim ** -0.5.
        causal: query i sees keys j <= i + seqlen_k - seqlen_q.
        window_size: (left, right), inclusive; -1 or None: open.
        softcap: c > 0 turns a score s into c * tanh(s / c); 0: none.
        alibi_slopes: float32 [num_heads] or [batch, num_heads].
        deterministic: for the backward; the forward always is.
        return_attn_probs: for tests.
        num_splits: number of key splits; 0, the default, chooses automatically (FlashAttention-3's default is 1).
        pack_gqa: accepted; query heads of a group are always computed together.
        qv: [batch, seqlen_q, num_heads, head_dim_v], of FlashAttention-3: scores are q k^T + qv v^T; k, v are copied.
        q_descale, k_descale, v_descale: float32 [batch, num_kv_heads], of q, k and v of float8_e4m3fn, which are
            computed in bfloat16, as is out.
        attention_chunk: n > 0 lets a query see only keys of its own chunk of n keys; 0: all.
        sm_margin: NotImplementedError unless left out.

    Returns:
        out [batch, seqlen_q, num_heads, head_dim_v]; with return_attn_probs (out, softmax_lse, S_dmask): softmax_lse
        float32 [batch, num_heads, seqlen_q], natural logarithm, -inf for a row without keys (FlashAttention-2 has
        +inf); S_dmask [batch, num_heads, seqlen_q, seqlen_k], negative where dropped, empty without dropout.

    Raises:
        ValueError, NotImplementedError, MemoryError, RuntimeError: as attention().
    """
    settings = None
    has_fa3 = attention_chunk or sm_margin or not (qv is q_descale is k_descale is v_descale is None)
    if not has_fa3 and alibi_slopes is None and not dropout_p and not return_attn_probs and type(window_size) is tuple:
        settings = ("flash_attn", softmax_scale, causal, window_size, softcap, num_splits, deterministic)
        out = _quick.attention(q, k, v, settings)
        if out is not None:
            return out
    if has_fa3 or _fa3.is_fp8(q):
        _fa3.refuse_margin(sm_margin)
        (q, k, v), softmax_scale = _fa3.operands(
            (q, k, v), qv, _fa3.Descales(q_descale, k_descale, v_descale), softmax_scale
        )
        settings = None
    if attention_chunk:
        batch, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
        result = flash_attn_varlen_func(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), _fa3.equal_offsets(q), _fa3.equal_offsets(k), seqlen_q,
            seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
            return_attn_probs, attention_chunk=attention_chunk, num_splits=num_splits,
        )  # fmt: skip
        return _fa3.dense(result, batch, seqlen_q)
    extras = None if alibi_slopes is None else extras_of(alibi_slopes=alibi_slopes)
    return run(
        (q, k, v), extras, dropout_p, softmax_scale, causal, window_size, softcap, 0, 0, num_splits, deterministic,
        return_attn_probs, settings,
    )  # fmt: skip


@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None = ..., max_seqlen_k: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ..., **fa3: Unpack[_VarlenFa3],
) -> Tensor: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None = ..., max_seqlen_k: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    *, return_attn_probs: Literal[True], **fa3: Unpack[_VarlenFa3],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None = ..., max_seqlen_k: int | None = ...,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Window = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ..., **fa3: Unpack[_VarlenFa3],
) -> Any: ...  # fmt: skip
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor | None,
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
    block_table: torch.Tensor | None = None,
    *,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    attention_chunk: int = 0,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Any:
    """flash_attn.flash_attn_varlen_func: a ragged batch of concatenated sequences.

    Args:
        q: [total_q, num_heads, head_dim]; float16, bfloat16, float32 or float64, any strides.
        k: [total_k, num_kv_heads, head_dim]. v: [total_k, num_kv_heads, head_dim_v].
        cu_seqlens_q, cu_seqlens_k: int32 [batch + 1], on the device of q, from 0 to total_q and total_k.
        max_seqlen_q, max_seqlen_k: upper bounds of the lengths; optional on the CPU.
        block_table: int32 [batch, max_pages]: k and v are then pages, [num_pages, page_size, num_kv_heads, dim], of any
            page size. cu_seqlens_k then only gives lengths, and may be None with seqused_k. No gradients.
        seqused_q, seqused_k: int32 [batch], the rows and keys in use of each sequence, its first ones. out and the
            gradients of the others are 0.
        The others and the errors: as flash_attn_func.

    Returns:
        out [total_q, num_heads, head_dim_v]; with return_attn_probs (out, softmax_lse, S_dmask): softmax_lse float32
        [num_heads, total_q]; S_dmask [batch, num_heads, max_seqlen_q, max_seqlen_k], 0 past the end of a sequence,
        empty without dropout; not of keys in pages.
    """
    _fa3.refuse_margin(sm_margin)
    descales = _fa3.Descales(q_descale, k_descale, v_descale)
    if qv is not None or _fa3.is_fp8(q) or descales != (None, None, None):
        _fa3.refuse_pages(block_table)
        (q, k, v), softmax_scale = _fa3.operands((q, k, v), qv, descales, softmax_scale, cu_seqlens_q, cu_seqlens_k)
    max_seqlen_k = max_length("k", max_seqlen_k, cu_seqlens_k)
    if block_table is not None:
        if seqused_k is None and cu_seqlens_k is not None:
            seqused_k = cu_seqlens_k.diff()
        cu_seqlens_k = None
    max_seqlen_q = max_length("q", max_seqlen_q, cu_seqlens_q) or 0
    needs_cut = seqused_k is not None and block_table is None and _ops.needs_gradient(q, k, v)  # the library has none
    if attention_chunk or seqused_q is not None or needs_cut:
        given = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
        k, v, lengths = _segments.of_call(k, v, block_table, given, attention_chunk, max_seqlen_q, max_seqlen_k or 0)
        cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, num = lengths
        if alibi_slopes is not None and alibi_slopes.dim() == 2:
            alibi_slopes = alibi_slopes.repeat_interleave(num, 0)
    extras = extras_of(
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, alibi_slopes=alibi_slopes, block_table=block_table,
        seqused_k=seqused_k,
    )  # fmt: skip
    return run(
        (q, k, v), extras, dropout_p, softmax_scale, causal, window_size, softcap,
        max_seqlen_q, max_seqlen_k or 0, num_splits, deterministic, return_attn_probs,
    )  # fmt: skip
