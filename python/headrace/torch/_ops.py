"""The operators torch.ops.headrace.attention, attention_packed and their backwards, for torch.compile, autocast and
autograd.

Plain eager calls go straight to _eager.forward, at a fraction of the dispatcher's cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from .._arguments import EXTRA_NAMES, lse_shape, probs_shape, swapped_heads
from .._plans import Options
from . import _backward, _eager, _quick
from ._backward import unpacked
from ._eager import NO_EXTRAS, Extras, is_watched
from ._tensors import PLAIN, PLAIN_OR_NONE, check_tensors, refuse_opaque
from ._transforms import transformable

_has_functorch = torch._C._are_functorch_transforms_active
_is_compiling = torch.compiler.is_compiling

_EXTRAS = (
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? alibi_slopes, Tensor? bias, Tensor? mask, "
    "Tensor? tree_mask, Tensor? sinks, Tensor? block_table, Tensor? page_indptr, Tensor? seqused_k, Tensor? k_scale, "
    "Tensor? v_scale, Tensor? k_recent, Tensor? v_recent, Tensor? recent_table"
)
# In the order of _plans.Options.
_OPTIONS = (
    "float? softmax_scale, float softcap, float dropout_p, SymInt window_left, SymInt window_right, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, int causal, int num_splits, bool strict_fallback, bool strict_rows, "
    "bool checked, bool deterministic, SymInt max_shared_prefix"
)
_NUM_EXTRAS, _NUM_OPTIONS = len(NO_EXTRAS), len(Options._fields)
_BIAS, _SINKS = (EXTRA_NAMES.index(name) for name in ("bias", "sinks"))
_FLOATS = tuple(
    EXTRA_NAMES.index(name)
    for name in ("alibi_slopes", "bias", "sinks", "k_scale", "v_scale", "k_recent", "v_recent")
)

_library = torch.library.Library("headrace", "DEF")
_tags = (torch.Tag.pt2_compliant_tag,)
_REST = f"{_EXTRAS}, Tensor? dropout_state, {_OPTIONS}, bool heads_first"
# attention_packed has the arguments of _backward.unpacked(); gradients have the layout of their arguments.
for _suffix, _operands, _gradients in (
    ("", "Tensor q, Tensor k, Tensor v", "Tensor dq, Tensor dk, Tensor dv"),
    ("_packed", "Tensor? q, Tensor packed", "Tensor dq, Tensor dpacked"),
):
    _library.define(
        f"attention{_suffix}({_operands}, {_REST}, bool with_lse, bool with_probs) "
        "-> (Tensor out, Tensor lse, Tensor probs)",
        tags=_tags,
    )
    _library.define(
        f"attention{_suffix}_backward(Tensor dout, Tensor? dlse, {_operands}, Tensor out, Tensor lse, {_REST}) "
        f"-> ({_gradients}, Tensor dbias, Tensor dsinks)",
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
    """PyTorch silently ignores tangents for operators that only have a backward."""
    if forward_ad._current_level < 0:
        return
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                "a tangent of forward-mode differentiation: this version of headrace only supports backward(); use "
                "that, or compute attention with plain tensor operations"
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


def _forward_packed(q: torch.Tensor | None, packed: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    return _forward(*unpacked(q, packed), *rest)


def _forward_packed_fake(q: torch.Tensor | None, packed: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    return _forward_fake(*unpacked(q, packed), *rest)


# ---- backward ----


def _gradients_fake(*inputs: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Like the inputs; empty for absent ones."""
    given = next(t for t in reversed(inputs) if t is not None)
    return tuple(
        given.new_empty((0,), dtype=torch.float32) if t is None else torch.empty_like(t) for t in inputs
    )


def _backward_fake(dout: torch.Tensor, dlse: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, ...]:
    return _gradients_fake(*rest[:3], rest[5 + _BIAS], rest[5 + _SINKS])


def _packed_backward_fake(dout: torch.Tensor, dlse: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, ...]:
    return _gradients_fake(*rest[:2], rest[4 + _BIAS], rest[4 + _SINKS])


def _save_nothing(ctx: Any, inputs: tuple, output: tuple) -> None:
    pass


def _refuse_to_differentiate(ctx: Any, *of_gradients: Any) -> tuple:
    raise NotImplementedError(
        "gradients of attention's gradients: this version of headrace does not support double backward; differentiate "
        "once, or compute attention with plain tensor operations"
    )


def _register_autograd(name: str, num_operands: int) -> Callable[..., Any]:
    """`num_operands` tensors precede the extras, each with a gradient unless it is None. Returns the operator for the
    transforms of torch.func."""
    after_extras = num_operands + _NUM_EXTRAS
    operator, backward = (getattr(torch.ops.headrace, n).default for n in (name, f"{name}_backward"))
    transformable_backward = transformable(backward, _save_nothing, _refuse_to_differentiate)

    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        out, lse, probs = output
        ctx.mark_non_differentiable(probs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:num_operands], out, lse, *inputs[num_operands : after_extras + 1])
        ctx.rest = inputs[after_extras + 1 : -2]  # options and heads_first; neither with_lse nor with_probs

    def differentiate(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None, dprobs: None) -> tuple:
        saved = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(saved[num_operands])
        run = transformable_backward if _has_functorch() else backward
        *of_operands, dbias, dsinks = run(dout, dlse, *saved, *ctx.rest)
        of_inputs = [*of_operands, *(None,) * (_NUM_EXTRAS + 1 + _NUM_OPTIONS + 3)]
        of_inputs[num_operands + _BIAS], of_inputs[num_operands + _SINKS] = dbias, dsinks
        given = (*saved[:num_operands], *saved[num_operands + 2 : -1])
        return tuple(None if i < len(given) and given[i] is None else d for i, d in enumerate(of_inputs))

    torch.library.register_autograd(f"headrace::{name}", differentiate, setup_context=setup_context, lib=_library)
    torch.library.register_autograd(f"headrace::{name}_backward", _refuse_to_differentiate, lib=_library)
    return transformable(operator, setup_context, differentiate)


# ---- autocast ----


def _autocast_kernel(name: str, num_operands: int, device_type: str) -> Any:
    def cast_and_call(*flat: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        dtype = torch.get_autocast_dtype(device_type)
        operands = [
            t.to(dtype) if t is not None and t.is_floating_point() and t.itemsize in (2, 4) else t
            for t in flat[:num_operands]  # neither float64 nor codes
        ]
        rest = list(flat[num_operands:])
        bias = rest[_BIAS]
        if bias is not None and bias.dtype not in (torch.float32, torch.float64):
            rest[_BIAS] = bias.to(dtype)
        with torch.autocast(device_type, enabled=False):
            return getattr(torch.ops.headrace, name)(*operands, *rest)

    return cast_and_call


# ---- registration ----

def _checked(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wraps a kernel, which reads raw memory, with a check of the tensors' classes."""
    schema = getattr(torch.ops.headrace, name).default._schema
    names = tuple(a.name for a in schema.arguments if "Tensor" in str(a.type))
    count = len(names)  # tensors come first

    def run(*flat: Any) -> Any:
        if not PLAIN_OR_NONE.issuperset(map(type, flat[:count])):
            refuse_opaque(names, flat[:count])
        return kernel(*flat)

    return run


_KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # and the fake kernels
    "attention": (_forward, _forward_fake),
    "attention_backward": (_backward.attention_backward, _backward_fake),
    "attention_packed": (_forward_packed, _forward_packed_fake),
    "attention_packed_backward": (_backward.attention_packed_backward, _packed_backward_fake),
}
for _name, (_kernel, _fake) in _KERNELS.items():
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _checked(_kernel, _name), _key)
    torch.library.register_fake(f"headrace::{_name}", _fake, lib=_library)
for _name, _num_operands in (("attention", 3), ("attention_packed", 2)):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _autocast_kernel(_name, _num_operands, _key.lower()), f"Autocast{_key}")
_transformable = _register_autograd("attention", 3)
_transformable_packed = _register_autograd("attention_packed", 2)


# ---- entry points ----

_NAMES = ("q", "k", "v", *EXTRA_NAMES)
_PACKED_NAMES = ("q", "packed", *EXTRA_NAMES)
_is_grad_enabled = torch.is_grad_enabled
# The operators, and their replacements under torch.func's transforms.
_FUNCTIONS = (torch.ops.headrace.attention.default, _transformable)
_PACKED_FUNCTIONS = (torch.ops.headrace.attention_packed.default, _transformable_packed)


def _are_memory(extras: Extras) -> bool:
    if not PLAIN_OR_NONE.issuperset(map(type, extras)):
        return False
    return not any(t is not None and t.is_neg() for t in map(extras.__getitem__, _FLOATS))


def _is_transformed() -> bool:
    return not _is_compiling() and _has_functorch()


def _require_grad(tensors: tuple[torch.Tensor | None, ...]) -> bool:
    return _is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _pass_operator(
    functions: tuple[Any, Any], names: tuple[str, ...], tensors: tuple, rest: tuple, flags: tuple[bool, bool, bool]
) -> Any:
    """Calls the operator, or its replacement under torch.func's transforms."""
    check_tensors(names, tensors, 3 if names is _NAMES else 0)
    _refuse_tangents(tensors)  # also tangents of torch.func.jvp, which are invisible to the operator
    is_transformed = _is_transformed()
    heads_first, with_lse, with_probs = flags
    with_lse = with_lse or is_transformed or _require_grad(tensors)
    return functions[1 if is_transformed else 0](*tensors, *rest, heads_first, with_lse, with_probs)


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
    """out, lse, probs; results that were not requested are None, empty, or computed anyway. With `quick_settings`
    _quick.py remembers the call."""
    given = NO_EXTRAS if extras is None else extras
    if (
        is_watched()
        or not PLAIN.issuperset((type(q), type(k), type(v)))
        or q.is_meta
        or not (extras is None or _are_memory(extras))
    ):
        flags = (heads_first, with_lse, with_probs)
        return _pass_operator(_FUNCTIONS, _NAMES, (q, k, v, *given), (dropout_state, *options), flags)
    bias, sinks = (None, None) if extras is None else (extras[_BIAS], extras[_SINKS])
    needs_grad = _is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (sinks is not None and sinks.requires_grad)
    )
    try:
        entry, q, k, v = _eager.prepare(q, k, v, extras, options, heads_first, with_lse or needs_grad, with_probs)
    except RuntimeError:  # nested tensors of the strided layout have no sizes
        check_tensors(_NAMES, (q, k, v, *given), 3)
        raise
    if quick_settings is not None:
        _quick.remember(entry, q, k, v, quick_settings, needs_grad)
    out, lse, probs = results = _eager.results_of(entry, q, k, v, extras, dropout_state)
    if not needs_grad:
        return results
    if extras is dropout_state is None and not with_lse and not with_probs:
        return _backward.differentiable(q, k, v, (entry, out, lse)), None, None
    call = (entry, results, (*given, dropout_state))
    return _backward.differentiable_with_extras(q, k, v, call, bias, sinks)


def needs_gradient(*operands: torch.Tensor | None) -> bool:
    return _require_grad(operands)


def attention_packed(
    q: torch.Tensor | None,
    packed: torch.Tensor,
    extras: Extras | None,
    options: tuple,
    dropout_state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, for the arguments of unpacked() and needs_gradient(). The backward writes the parts of `packed`'s
    gradient into one tensor; autograd would copy them once more to assemble it."""
    given = NO_EXTRAS if extras is None else extras
    if (
        is_watched()
        or not PLAIN.issuperset((type(packed), type(packed if q is None else q)))
        or packed.is_meta
        or packed.is_neg()
        or (q is not None and q.is_neg())
        or not _are_memory(given)
    ):
        tensors, rest = (q, packed, *given), (dropout_state, *options)
        return _pass_operator(_PACKED_FUNCTIONS, _PACKED_NAMES, tensors, rest, (False, True, False))[:2]
    with torch.no_grad():
        entry, *parts = _eager.prepare(*unpacked(q, packed), extras, options, False, True, False)
    results = _eager.results_of(entry, parts[0], parts[1], parts[2], extras, dropout_state)
    return _backward.differentiable_packed(q, packed, (entry, results, (*given, dropout_state)))
