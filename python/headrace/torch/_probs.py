"""flash-attn's S_dmask: the probabilities of a call with dropout, for tests."""

from __future__ import annotations

import torch

from .._arguments import EXTRA_NAMES, refuse_probs_of_pages
from .._plans import Options
from .._structs import CAUSAL_NONE
from . import _ops
from ._eager import Extras, extras_of


def signed_probs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extras: Extras | None, options: tuple, state: torch.Tensor | None
) -> torch.Tensor:
    """The probabilities before dropout, negative if dropped; empty without dropout."""
    if state is None:
        return q.new_empty(0)
    named = dict(zip(EXTRA_NAMES, extras or ()))
    with torch.no_grad():
        if named.get("cu_seqlens_q") is not None:
            return _of_ragged(q, k, v, named, Options(*options), state)
        dropped = _ops.attention(q, k, v, extras, options, state, False, False, True)[2]
        whole = (*options[:2], 0.0, *options[3:])
        probs = _ops.attention(q, k, v, extras, whole, None, False, False, True)[2]
    assert dropped is not None and probs is not None
    return torch.where(dropped == 0, -probs, probs).to(q.dtype)


def _of_ragged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    named: dict[str, torch.Tensor | None],
    options: Options,
    state: torch.Tensor,
) -> torch.Tensor:
    """One sequence at a time. The mask depends on the place in the batch: one dense call without scores gives it."""
    refuse_probs_of_pages(named["block_table"])
    offsets = named["cu_seqlens_q"], named["cu_seqlens_k"]
    ends = [cu.tolist() for cu in offsets if cu is not None]
    batch, heads = len(ends[0]) - 1, q.shape[1]
    zeros = [q.new_zeros(batch, n, heads, 1) for n in (options.max_seqlen_q, options.max_seqlen_k)]
    plain = Options(1.0, 0.0, options.dropout_p, -1, -1, 0, 0, CAUSAL_NONE, 0, False, False, False, False, 0)
    kept = _ops.attention(zeros[0], zeros[1], zeros[1], None, tuple(plain), state, False, False, True)[2]
    assert kept is not None
    result = torch.zeros_like(kept)
    alone = tuple(options._replace(dropout_p=0.0, max_seqlen_q=0, max_seqlen_k=0))
    slopes, used = named["alibi_slopes"], named["seqused_k"]
    for b in range(batch):
        (i, i_end), (j, j_end) = (e[b : b + 2] for e in ends)
        j_end = j_end if used is None else j + int(used[b])
        of_one = extras_of(alibi_slopes=slopes if slopes is None or slopes.dim() == 1 else slopes[b : b + 1])
        parts = (q[None, i:i_end], k[None, j:j_end], v[None, j:j_end])
        probs = _ops.attention(*parts, of_one, alone, None, False, False, True)[2]
        assert probs is not None
        result[b, :, : i_end - i, : j_end - j] = probs[0]
    return torch.where(kept == 0, -result, result).to(q.dtype)
