"""attention(): all features of the library, on PyTorch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from .._arguments import dropout_words, is_heads_first, make_options, refuse_probs_of_pages
from . import _ops
from ._eager import Extras
from ._tensors import check_tensors

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._arguments import Numbers

    class _Options(Numbers, total=False):
        alibi_slopes: torch.Tensor | None
        bias: torch.Tensor | None
        mask: torch.Tensor | None
        tree_mask: torch.Tensor | None
        sinks: torch.Tensor | None
        dropout_seed: int | None
        cu_seqlens_q: torch.Tensor | None
        cu_seqlens_k: torch.Tensor | None
        block_table: torch.Tensor | None
        page_indptr: torch.Tensor | None
        seqused_k: torch.Tensor | None
        k_scale: torch.Tensor | None
        v_scale: torch.Tensor | None
        k_recent: torch.Tensor | None
        v_recent: torch.Tensor | None
        recent_table: torch.Tensor | None
        deterministic: bool


Tensor = torch.Tensor


def random_dropout_state() -> torch.Tensor:
    """(seed, offset) from PyTorch's CPU generator: torch.manual_seed() applies, and no device synchronizes."""
    return torch.randint(0, 1 << 62, (2,), dtype=torch.int64, device="cpu")


def given_dropout_state(seed: int, offset: int) -> torch.Tensor:
    """The library's unsigned 64-bit values in an int64 tensor."""
    words = dropout_words(seed, offset)
    return torch.tensor([n - (1 << 64) if n >> 63 else n for n in words], dtype=torch.int64)


def max_length(name: str, given: int | None, cu_seqlens: torch.Tensor | None) -> int | None:
    if given is not None or cu_seqlens is None:
        return given
    check_tensors((f"cu_seqlens_{name}",), (cu_seqlens,), 1)
    if cu_seqlens.is_cuda:
        raise ValueError(
            f"max_seqlen_{name}: not given; pass the longest sequence: reading cu_seqlens_{name} would synchronize"
        )
    return int(cu_seqlens.diff().max()) if len(cu_seqlens) > 1 else 0


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = ..., return_probs: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], return_probs: Literal[False] = ...,
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = ..., return_probs: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], return_probs: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = ..., return_probs: bool = ...,
    **options: Unpack[_Options],
) -> Tensor | tuple[Tensor, ...]: ...  # fmt: skip
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
    block_table: torch.Tensor | None = None,
    page_indptr: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    k_recent: torch.Tensor | None = None,
    v_recent: torch.Tensor | None = None,
    recent_table: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    num_splits: int = 0,
    strict_rows: bool = False,
    strict_fallback: bool = False,
    checked: bool = False,
    max_shared_prefix: int = 0,
    deterministic: bool = False,
    return_lse: bool = False,
    return_probs: bool = False,
    layout: str = "bshd",
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """headrace.attention of PyTorch tensors, differentiable: softmax(softmax_scale * q k^T + ...) v.

    Args:
        Arguments not listed here: as in headrace.attention; all tensors on the device of q.
        q, k, v: float32, float16, bfloat16 or float64; any strides, copied if the last axis is not contiguous.
        tree_mask: uint32 or int32.
        dropout_seed: None: seed and offset are drawn from torch's CPU generator.
        max_seqlen_q, max_seqlen_k: optional on the CPU.
        block_table, page_indptr, seqused_k: as in headrace.attention; without gradients.
        k_scale, v_scale, k_recent, v_recent, recent_table: of k and v of codes, int8, float8_e4m3fn or uint8 (int4); as
            in headrace.attention, without gradients.
        deterministic: gradients are bit-identical from run to run, as under
            torch.use_deterministic_algorithms(True); always the case on the CPU.

    Returns:
        out, with the dtype of q; contiguous, with layout="bhsd" in that order. With return_lse or return_probs a tuple
        (out, lse, probs) of the requested results. out and lse are differentiable with respect to q, k, v, bias and
        sinks.

    Raises:
        As headrace.attention. backward() raises the same, NotImplementedError if no kernel of this build and device
        supports it.
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
        deterministic=deterministic,
        max_shared_prefix=max_shared_prefix,
    )
    given: Extras = (
        cu_seqlens_q, cu_seqlens_k, alibi_slopes, bias, mask, tree_mask, sinks, block_table, page_indptr, seqused_k,
        k_scale, v_scale, k_recent, v_recent, recent_table,
    )  # fmt: skip
    if return_probs:
        refuse_probs_of_pages(block_table)
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
