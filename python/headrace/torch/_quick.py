"""The shortest way to the library: a plain call that was made before, with q, k and v alone."""

from __future__ import annotations

import torch

from .. import _plans
from ._backward import differentiable
from ._eager import compute, is_watched

_Tensor = torch.Tensor
_kept = _plans.get
_num_threads = torch.get_num_threads
_empty_like = torch.empty_like
_is_grad_enabled = torch.is_grad_enabled


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, settings: tuple) -> torch.Tensor | None:
    """out of a plain call that _ops.attention() computed before with these quick_settings, or None."""
    if is_watched() or type(q) is not _Tensor or type(k) is not _Tensor or type(v) is not _Tensor:
        return None
    q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    needs_grad = _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    # _eager.quick_key(), written out: half a microsecond counts here.
    entry = _kept((
        settings, needs_grad, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.get_device(), k.get_device(), v.get_device(), (q_data | k_data | v_data) & 15, _num_threads(),
    ))  # fmt: skip
    if entry is None or not (q_data and k_data and v_data):  # tensors without memory look like the CPU's
        return None
    if needs_grad:
        lse = _empty_like(entry.lse)
        return differentiable(q, k, v, (entry, compute(entry, q, q_data, k_data, v_data, lse), lse))
    return compute(entry, q, q_data, k_data, v_data)
