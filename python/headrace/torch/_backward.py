"""The backward of attention, and the autograd nodes of eager calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _plans
from .._arguments import EXTRA_NAMES
from .._plans import Options
from .._structs import DATA_WORD, GRADIENT_WORD
from . import _eager
from ._eager import NO_EXTRAS, view_of, without_gaps
from ._tensors import PLAIN

_NUM_EXTRAS = len(EXTRA_NAMES)
_BIAS, _SINKS = EXTRA_NAMES.index("bias"), EXTRA_NAMES.index("sinks")
_OPERAND_WORDS = tuple(DATA_WORD[name] for name in ("q", "k", "v", "out", "lse"))
_GRADIENT_NAMES = ("dq", "dk", "dv", "dbias", "dsinks", "dout", "dlse")
_GRADIENT_WORDS = tuple(GRADIENT_WORD[name] for name in _GRADIENT_NAMES)
_NOTHING = (*NO_EXTRAS, None)
_HEADS_FIRST = frozenset(("q", "k", "v", "out", "dq", "dk", "dv", "dout"))
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_must_be_deterministic = torch.are_deterministic_algorithms_enabled


def attention_backward(
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *rest: Any,
    results: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv, dbias, dsinks), the last two empty without bias and sinks.

    `rest`: the extras, the dropout state and the options of the forward, heads_first, in the order of the schema in
    _ops.py. `results`: outputs for dq, dk and dv. Gradients have the shapes and dtypes of their inputs; queries that
    see no key contribute zero gradients.

    Raises:
        NotImplementedError: no kernel of this build supports the problem on the device.
        ValueError: an invalid argument.
    """
    extras, dropout_state = rest[:_NUM_EXTRAS], rest[_NUM_EXTRAS]
    options, heads_first = rest[_NUM_EXTRAS + 1 : -1], rest[-1]
    if _must_be_deterministic():
        options = tuple(Options(*options)._replace(deterministic=True))
    operands = (without_gaps(q), without_gaps(k), without_gaps(v), without_gaps(out), lse)
    if results is None:
        results = [torch.empty_like(t) for t in (q, k, v)]
    # If a gradient's last axis is not contiguous (like its input's), the library writes to a copy.
    written = [without_gaps(t) for t in results]
    of_extras = [None if extras[i] is None else torch.empty_like(extras[i]) for i in (_BIAS, _SINKS)]
    gradients = (*written, *of_extras, without_gaps(dout), dlse)
    entry = _entry_of(operands, gradients, extras, options, heads_first)
    block = entry.plan.take_block()
    words = block.words
    for word, tensor in zip(_OPERAND_WORDS, operands):
        words[word] = tensor.data_ptr()
    _eager.write_extras(words, extras)
    words = block.gradient_words
    for word, gradient in zip(_GRADIENT_WORDS, gradients):
        if gradient is not None:
            words[word] = gradient.data_ptr()
    if dropout_state is not None:
        _eager.set_dropout(block, dropout_state)
    _eager.run(entry, block)
    for result, tensor in zip(results, written):
        if tensor is not result:
            result.copy_(tensor)
    dbias, dsinks = (_eager.empty_results(q) if t is None else t for t in of_extras)
    return *results, dbias, dsinks


def attention_packed_backward(
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    q: torch.Tensor | None,
    packed: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, ...]:
    """(dq, dpacked, dbias, dsinks) like attention_backward(), for arguments of unpacked(); dq is empty without q."""
    dq, dpacked = None if q is None else torch.empty_like(q), torch.empty_like(packed)
    results = unpacked(dq, dpacked)
    of_extras = attention_backward(dout, dlse, *unpacked(q, packed), out, lse, *rest, results=results)[3:]
    return _eager.empty_results(packed) if dq is None else dq, dpacked, *of_extras


def unpacked(q: torch.Tensor | None, packed: torch.Tensor) -> Parts:
    """q, k and v as views, of packed = [..., 3, num_heads, head_dim] or of q and [..., 2, num_kv_heads, head_dim]."""
    *first, k, v = packed.unbind(-3)
    return first[0] if q is None else q, k, v


def _entry_of(operands: tuple, gradients: tuple, extras: tuple, options: tuple, heads_first: bool) -> _eager.Entry:
    q = operands[0]
    threads = 0 if q.is_cuda else torch.get_num_threads()
    alignment = 0
    for tensor in (*operands[:4], *gradients[:3], gradients[5]):
        alignment |= tensor.data_ptr()
    key = (
        "backward", _eager.layouts_of(operands), _eager.layouts_of(gradients), _eager.layouts_of(extras), options,
        heads_first, threads, alignment & 15,
    )  # fmt: skip
    entry = _plans.get(key)
    if entry is None:
        views, of_gradients = (
            {n: view_of(n, t, heads_first and n in _HEADS_FIRST) for n, t in zip(names, tensors) if t is not None}
            for names, tensors in (
                (("q", "k", "v", "out", "lse", *EXTRA_NAMES), (*operands, *extras)),
                (_GRADIENT_NAMES, gradients),
            )
        )
        entry = _plans.keep(key, _eager.Entry(_plans.make(views, Options(*options), threads, of_gradients), q))
    return entry


# ---- nodes of autograd's graph ----


def _is_direct(*gradients: torch.Tensor | None) -> bool:
    """Whether the backward may bypass the operator. Otherwise observers need to see the operator, and it refuses double
    backward. Incoming gradients may be negated views (of conjugated complex tensors) or batched tensors without memory
    of their own (is_grads_batched)."""
    if torch.is_grad_enabled() or _eager.is_watched():
        return False
    for gradient in gradients:
        if gradient is not None:
            if type(gradient) not in PLAIN or gradient.is_neg():
                return False
            try:
                gradient.data_ptr()
            except RuntimeError:
                return False
    return True


def _gradients(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    q, k, v, out, lse, *rest = ctx.saved_tensors
    entry = ctx.entry
    run = attention_backward if _is_direct(dout, dlse) else torch.ops.headrace.attention_backward
    if dout is None:
        dout = torch.zeros_like(out)
    return run(dout, dlse, q, k, v, out, lse, *(rest or _NOTHING), *entry.options, entry.heads_first)


class _Differentiable(torch.autograd.Function):
    """Replaces the operator for a plain eager call with gradients: the same backward at a fraction of the cost. The
    results of the forward are computed already."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: tuple) -> torch.Tensor:
        """`call`: entry, out, lse."""
        ctx.entry, out, lse = call
        ctx.to_save = (q, k, v, out, lse)  # save_for_backward() does only this
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *_gradients(ctx, dout, None)[:3], None


class _DifferentiableWithExtras(torch.autograd.Function):
    """The same with all features of the operator."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        call: tuple,
        bias: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """`call`: entry, (out, lse, probs), the extras (bias and sinks among them) and the dropout state."""
        ctx.entry, (out, lse, probs), rest = call
        ctx.save_for_backward(q, k, v, out, lse, *rest)
        ctx.set_materialize_grads(False)
        ctx.has_bias, ctx.has_sinks = bias is not None, sinks is not None
        if probs is not None:
            ctx.mark_non_differentiable(probs)
        return out, lse, probs

    @staticmethod
    def backward(
        ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, dprobs: None
    ) -> tuple[torch.Tensor | None, ...]:
        dq, dk, dv, dbias, dsinks = _gradients(ctx, dout, dlse)
        return dq, dk, dv, None, dbias if ctx.has_bias else None, dsinks if ctx.has_sinks else None


class _DifferentiablePacked(torch.autograd.Function):
    """Replaces the operator attention_packed for an eager call."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor | None, packed: torch.Tensor, call: tuple
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`call`: entry, (out, lse, None), the extras and the dropout state."""
        ctx.entry, (out, lse, _), rest = call
        ctx.save_for_backward(q, packed, out, lse, *rest)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        q, packed, out, lse, *rest = ctx.saved_tensors
        run = attention_packed_backward if _is_direct(dout, dlse) else torch.ops.headrace.attention_packed_backward
        if dout is None:
            dout = torch.zeros_like(out)
        dq, dpacked, *_ = run(dout, dlse, q, packed, out, lse, *rest, *ctx.entry.options, ctx.entry.heads_first)
        return dq if q is not None else None, dpacked, None


def _apply_of(function: type[torch.autograd.Function]) -> Any:
    """Function.apply() without its handling of torch.func transforms, which is_watched() excludes."""
    parent: Any = super(torch.autograd.Function, function)
    return parent.apply


differentiable = _apply_of(_Differentiable)
differentiable_with_extras = _apply_of(_DifferentiableWithExtras)
differentiable_packed = _apply_of(_DifferentiablePacked)
