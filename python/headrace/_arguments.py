"""Converts Python arguments of attention into the library's. Shared by arrays and PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _structs
from ._plans import Options
from ._structs import CODES_PER_BYTE, QUANTISED_NAMES

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class Numbers(TypedDict, total=False):
        """Keyword arguments of attention() on arrays and on PyTorch tensors, for the overloads by return type."""

        softmax_scale: float | None
        causal: bool | str
        window: tuple[int | None, int | None]
        softcap: float
        dropout_p: float
        dropout_offset: int
        max_seqlen_q: int | None
        max_seqlen_k: int | None
        num_splits: int
        strict_rows: bool
        strict_fallback: bool
        checked: bool
        max_shared_prefix: int
        layout: str

# Optional tensors of a call besides q, k and v, in the order in which they are passed around.
EXTRA_NAMES = (
    "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "bias", "mask", "tree_mask", "sinks", "block_table", "page_indptr",
    "seqused_k", *QUANTISED_NAMES,
)  # fmt: skip
LAYOUTS = ("bshd", "bhsd")

_CAUSAL = {
    False: _structs.CAUSAL_NONE,
    True: _structs.CAUSAL_BOTTOM_RIGHT,
    None: _structs.CAUSAL_NONE,
    "bottom-right": _structs.CAUSAL_BOTTOM_RIGHT,
    "top-left": _structs.CAUSAL_TOP_LEFT,
}


def causal_code(causal: bool | str | None) -> int:
    try:
        return _CAUSAL[causal]
    except (KeyError, TypeError):
        raise ValueError(
            f"causal={causal!r}: must be False, True (bottom-right), 'bottom-right' or 'top-left'"
        ) from None


def window_sizes(window: Any) -> tuple[int, int]:
    """(left, right); None and negative numbers mean open (-1)."""
    try:
        left, right = window
        left = -1 if left is None or left < 0 else left
        right = -1 if right is None or right < 0 else right
    except (TypeError, ValueError):
        raise ValueError(f"window={window!r}: must be (left, right), with -1 or None for an open side") from None
    return left, right


def dropout_words(seed: Any, offset: Any) -> tuple[int, int]:
    words = []
    for name, value in (("dropout_seed", seed), ("dropout_offset", offset)):
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{name}={value!r}: must be an integer") from None
        if not 0 <= number < 1 << 64:
            raise ValueError(f"{name}={number}: must be 0 to 2**64 - 1; pass {name} % 2**64")
        words.append(number)
    return words[0], words[1]


def is_heads_first(layout: str) -> bool:
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: must be 'bshd' ([batch, seqlen, heads, dim]) or 'bhsd'")
    return layout == "bhsd"


def make_options(
    *,
    softmax_scale: float | None,
    causal: bool | str | None,
    window: Any,
    softcap: float,
    dropout_p: float,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    num_splits: int,
    strict_rows: bool,
    strict_fallback: bool,
    checked: bool,
    deterministic: bool = False,
    max_shared_prefix: int = 0,
) -> Options:
    left, right = window_sizes(window)
    return Options(
        softmax_scale,
        softcap,
        dropout_p,
        left,
        right,
        max_seqlen_q or 0,
        max_seqlen_k or 0,
        causal_code(causal),
        num_splits,
        strict_fallback,
        strict_rows,
        checked,
        deterministic,
        max_shared_prefix,
    )


def swapped_heads(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Converts sizes or strides between [batch, heads, seqlen, dim] and [batch, seqlen, heads, dim]."""
    return (sizes[0], sizes[2], sizes[1], sizes[3]) if len(sizes) == 4 else sizes


def out_shape(q: tuple[int, ...], v: tuple[int, ...], v_dtype: int) -> tuple[int, ...]:
    """The shape of out for q and v; for invalid ranks the library reports the error."""
    return (*q[:-1], v[-1] * CODES_PER_BYTE.get(v_dtype, 1)) if q and v else q


def lse_shape(q: tuple[int, ...], is_ragged: bool) -> tuple[int, ...]:
    """For q [batch, seqlen_q, num_heads, head_dim], ragged [total_q, num_heads, head_dim]."""
    if is_ragged:
        return (q[1], q[0]) if len(q) == 3 else (0, 0)
    return (q[0], q[2], q[1]) if len(q) == 4 else (0, 0, 0)


def refuse_probs_of_pages(block_table: Any) -> None:
    if block_table is not None:
        raise ValueError(
            "return_probs with block_table: must be one or the other, because the probabilities of keys in pages have "
            "no shape of their own; gather the keys, or leave return_probs out"
        )


def check_descales(
    q_descale: Any, descales: Sequence[tuple[str, Any, bool]], shape: tuple[int, int], has_rotary: bool
) -> None:
    """FlashAttention-3's descales of a cache.

    Args:
        descales: name, tensor or None, and whether its cache has codes, each.
        shape: [batch, num_kv_heads].
        has_rotary: new keys are to be rotated.
    """
    if q_descale is not None:
        raise NotImplementedError("q_descale: queries have 16 or 32 bits here; pass q * q_descale, and leave it out")
    for name, descale, is_code in descales:
        if descale is not None and not is_code:
            raise ValueError(f"{name}: given, but its cache has no codes; leave {name} out")
        if descale is not None and tuple(descale.shape) != shape:
            raise ValueError(
                f"{name}.shape={tuple(descale.shape)}: must be [batch, num_kv_heads], {shape}; pass one scale for each "
                "sequence and head"
            )
    if has_rotary and descales[0][2]:
        raise NotImplementedError(
            "rotary_cos with a k_cache of int8 codes: they cannot be rotated; rotate k before it is quantised, and q"
        )


def probs_shape(q: tuple[int, ...], k: tuple[int, ...]) -> tuple[int, ...]:
    return (q[0], q[2], q[1], k[1]) if len(q) == 4 and len(k) == 4 else (0, 0, 0, 0)
