"""The fast path: a plain call with only q, k and v that was made before.

Calls are looked up by settings and key. The latest key of each settings has a guard, which costs a third of a lookup.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad, profiler

from .. import _plans
from . import _eager
from ._backward import differentiable
from ._eager import compute, is_any_negated, is_watched_by_keys
from ._guards import Guard, guard_of

_Tensor = torch.Tensor
_kept = _plans.get
_num_threads = torch.get_num_threads
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_dynamo_compiling
_num_function_modes = torch._C._len_torch_function_stack
_empty_like = torch.empty_like

_VALUES = frozenset((str, int, float, bool, type(None)))

# Guard (or None), entry, whether a gradient is needed, whether one is possible, alignment of the addresses, threads.
Known = tuple[Guard | None, _eager.Entry, bool, bool, int, int]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, settings: tuple) -> torch.Tensor | None:
    """out of a plain call that _ops.attention() computed before with these settings, or None."""
    # Half a microsecond matters here. The guard covers the rest of is_watched(), which is is_watched_by_keys().
    if _is_compiling() or _num_function_modes() or forward_ad._current_level >= 0 or profiler._is_profiler_enabled:
        return None
    # PyTorch's guards end the process on nested tensors without layout=torch.jagged.
    if not (type(q) is type(k) is type(v) is _Tensor) or q.is_nested or k.is_nested or v.is_nested:
        return None
    try:
        known = _kept(settings)
    except TypeError:  # a setting is unhashable
        return None
    if known is None or not known[0](q, k, v):
        return _attention_by_key(q, k, v, settings)
    _, entry, needs_grad, is_grad_enabled, alignment, threads = known
    q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if (
        (q_data | k_data | v_data) & 15 != alignment
        or not (q_data and k_data and v_data)
        or _is_grad_enabled() is not is_grad_enabled
        or _num_threads() != threads
    ):
        return _attention_by_key(q, k, v, settings)
    if not needs_grad:
        return compute(entry, q, q_data, k_data, v_data)
    lse = _empty_like(entry.lse)
    return differentiable(q, k, v, (entry, compute(entry, q, q_data, k_data, v_data, lse), lse))


def _key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, settings: tuple, needs_grad: bool) -> tuple:
    return (
        settings, needs_grad, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.get_device(), k.get_device(), v.get_device(), _is_grad_enabled(),
        (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15, _num_threads(),
    )  # fmt: skip


def _is_plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    return type(q) is _Tensor and type(k) is _Tensor and type(v) is _Tensor


def remember(
    entry: _eager.Entry, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, settings: tuple, needs_grad: bool
) -> None:
    """Remembers an unobserved call for attention(). Skips settings that could change while they are a key, such as
    tensors."""
    values = (x for setting in settings for x in (setting if type(setting) is tuple else (setting,)))
    if _is_plain(q, k, v) and _VALUES.issuperset(map(type, values)):
        key = _key(q, k, v, settings, needs_grad)
        _plans.keep(key, (guard_of(q, k, v), entry, needs_grad, *key[-3:]))


def _attention_by_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, settings: tuple) -> torch.Tensor | None:
    if is_watched_by_keys():
        return None
    needs_grad = _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    try:
        known: Known | None = _kept(_key(q, k, v, settings, needs_grad))
    except RuntimeError:  # a tensor has no sizes, strides or memory
        return None
    q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if known is None or not (q_data and k_data and v_data):  # tensors without memory look like CPU tensors
        return None
    guard, entry, *_ = known
    if entry.has_one_column and is_any_negated(q, k, v):
        return None
    if guard is not None:
        _plans.replace(settings, known)
    if not needs_grad:
        return compute(entry, q, q_data, k_data, v_data)
    assert entry.lse is not None  # set if needs_grad
    lse = _empty_like(entry.lse)
    return differentiable(q, k, v, (entry, compute(entry, q, q_data, k_data, v_data, lse), lse))
