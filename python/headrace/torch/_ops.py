"""The operators torch.ops.headrace.attention and attention_backward: what torch.compile, autocast and autograd see.

Eager calls without anything of that go straight to _eager.forward, which costs a fraction of the dispatcher.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from .._arguments import lse_shape, probs_shape, swapped_heads
from .._plans import Options
from . import _backward, _eager, _quick
from ._eager import NO_EXTRAS, Extras, is_watched

_EXTRAS = (
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? alibi_slopes, Tensor? bias, Tensor? mask, "
    "Tensor? tree_mask, Tensor? sinks"
)
# In the order of _plans.Options.
_OPTIONS = (
    "float? softmax_scale, float softcap, float dropout_p, SymInt window_left, SymInt window_right, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, int causal, int num_splits, bool strict_fallback, bool strict_rows, "
    "bool checked, bool deterministic"
)
_NUM_EXTRAS, _NUM_OPTIONS = len(NO_EXTRAS), len(Options._fields)

_library = torch.library.Library("headrace", "DEF")
_tags = (torch.Tag.pt2_compliant_tag,)
_library.define(
    f"attention(Tensor q, Tensor k, Tensor v, {_EXTRAS}, Tensor? dropout_state, {_OPTIONS}, bool heads_first, "
    "bool with_lse, bool with_probs) -> (Tensor out, Tensor lse, Tensor probs)",
    tags=_tags,
)
_library.define(
    f"attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_EXTRAS}, "
    f"Tensor? dropout_state, {_OPTIONS}, bool heads_first) "
    "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks)",
    tags=_tags,
)


class _Arguments:
    """The flat arguments of the operator `attention`, by name."""

    __slots__ = ("dropout_state", "extras", "flags", "options", "qkv")

    def __init__(self, flat: tuple) -> None:
        self.qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = flat[:3]
        options = 4 + _NUM_EXTRAS
        self.extras: Extras = flat[3 : 3 + _NUM_EXTRAS]
        self.dropout_state: torch.Tensor | None = flat[3 + _NUM_EXTRAS]
        self.options: tuple = flat[options : options + _NUM_OPTIONS]
        # heads_first, with_lse, with_probs
        self.flags: tuple[bool, bool, bool] = flat[options + _NUM_OPTIONS :]


# ---- forward ----


def _refuse_tangents(tensors: tuple[torch.Tensor | None, ...]) -> None:
    """PyTorch passes them over in silence where an operator has a backward alone."""
    if forward_ad._current_level < 0:
        return
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                "a tangent of forward-mode differentiation: this version of headrace has backward() only; use that, or "
                "take attention from plain tensor operations"
            )


def _forward(*flat: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a = _Arguments(flat)
    _refuse_tangents((*a.qkv, *a.extras))
    extras = None if all(t is None for t in a.extras) else a.extras
    out, lse, probs = _eager.forward(*a.qkv, extras, tuple(a.options), a.dropout_state, *a.flags)
    empty = _eager.empty_results
    return out, empty(out) if lse is None else lse, empty(out) if probs is None else probs


def _forward_fake(*flat: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a = _Arguments(flat)
    q, k, v = a.qkv
    heads_first, with_lse, with_probs = a.flags
    shape, strides = _eager.out_layout(q, v, heads_first)
    out = q.new_empty_strided(shape, strides)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    q_sizes = swapped_heads(tuple(q.shape)) if heads_first else tuple(q.shape)
    k_sizes = swapped_heads(tuple(k.shape)) if heads_first else tuple(k.shape)
    lse = q.new_empty(lse_shape(q_sizes, a.extras[0] is not None) if with_lse else (0,), dtype=dtype)
    probs = q.new_empty(probs_shape(q_sizes, k_sizes) if with_probs else (0,), dtype=dtype)
    if not with_lse:
        lse = lse.to(torch.float32)
    if not with_probs:
        probs = probs.to(torch.float32)
    return out, lse, probs


# ---- backward ----


def _run_backward(*flat: Any) -> tuple[torch.Tensor, ...]:
    return _backward.attention_backward(*flat)


def _backward_fake(dout: torch.Tensor, dlse: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, ...]:
    q, k, v = rest[:3]
    bias, sinks = rest[5 + 3], rest[5 + 6]
    empty = torch.empty_like
    nothing = q.new_empty((0,), dtype=torch.float32)
    return (
        empty(q),
        empty(k),
        empty(v),
        nothing if bias is None else empty(bias),
        q.new_empty((0,), dtype=torch.float32) if sinks is None else empty(sinks),
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    out, lse, probs = output
    a = _Arguments(inputs)
    ctx.mark_non_differentiable(probs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*a.qkv, out, lse, *a.extras, a.dropout_state)
    ctx.options = a.options
    ctx.heads_first = a.flags[0]


def _differentiate(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, dprobs: None) -> tuple:
    q, k, v, out, lse, *extras, dropout_state = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    dq, dk, dv, dbias, dsinks = torch.ops.headrace.attention_backward(
        dout, dlse, q, k, v, out, lse, *extras, dropout_state, *ctx.options, ctx.heads_first
    )
    bias, sinks = extras[3], extras[6]
    of_extras = (None, None, None, None if bias is None else dbias, None, None, None if sinks is None else dsinks)
    return (dq, dk, dv, *of_extras, None, *(None,) * (_NUM_OPTIONS + 3))


def _refuse_to_differentiate(ctx: Any, *of_gradients: Any) -> tuple:
    raise NotImplementedError(
        "gradients of attention's gradients: this version of headrace has none; differentiate once, or take "
        "attention from plain tensor operations"
    )


# ---- autocast ----


def _autocast_kernel(device_type: str) -> Any:
    def cast_and_call(*flat: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dtype = torch.get_autocast_dtype(device_type)
        a = _Arguments(flat)
        qkv = [t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in a.qkv]
        bias = a.extras[3]
        extras = list(a.extras)
        if bias is not None and bias.dtype not in (torch.float32, torch.float64):
            extras[3] = bias.to(dtype)
        with torch.autocast(device_type, enabled=False):
            return torch.ops.headrace.attention(*qkv, *extras, *flat[3 + _NUM_EXTRAS :])

    return cast_and_call


for _key in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _key)
    _library.impl("attention_backward", _run_backward, _key)
    _library.impl("attention", _autocast_kernel(_key.lower()), f"Autocast{_key}")
torch.library.register_fake("headrace::attention", _forward_fake, lib=_library)
torch.library.register_fake("headrace::attention_backward", _backward_fake, lib=_library)
torch.library.register_autograd(
    "headrace::attention", _differentiate, setup_context=_setup_context, lib=_library
)
torch.library.register_autograd("headrace::attention_backward", _refuse_to_differentiate, lib=_library)
_operator = torch.ops.headrace.attention.default


# ---- the way in ----

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_is_grad_enabled = torch.is_grad_enabled


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extras: Extras | None,
    options: tuple,
    dropout_state: torch.Tensor | None,
    heads_first: bool,
    with_lse: bool,
    with_probs: bool,
    quick_settings: tuple | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """out, lse, probs; what was not asked for is None, an empty tensor, or there all the same. With `quick_settings`
    _quick.py knows the same call next time."""
    needs_grad = _is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (extras is not None and any(t is not None and t.requires_grad for t in extras))
    )
    given = NO_EXTRAS if extras is None else extras
    if is_watched() or not _PLAIN.issuperset((type(q), type(k), type(v))) or q.is_meta:
        _refuse_tangents((q, k, v, *given))  # also those of torch.func.jvp, which the operator does not see
        return _operator(q, k, v, *given, dropout_state, *options, heads_first, with_lse or needs_grad, with_probs)
    entry, q, k, v = _eager.prepare(q, k, v, extras, options, heads_first, with_lse or needs_grad, with_probs)
    if quick_settings is not None:
        _quick.remember(entry, q, k, v, quick_settings, needs_grad)
    out, lse, probs = results = _eager.results_of(entry, q, k, v, extras, dropout_state)
    if not needs_grad:
        return results
    if extras is dropout_state is None and not with_lse and not with_probs:
        return _backward.differentiable(q, k, v, (entry, out, lse)), None, None
    call = (entry, results, (*given, dropout_state))
    return _backward.differentiable_with_extras(q, k, v, call, given[3], given[6])
