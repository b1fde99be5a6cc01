"""The shortest way to the library: a plain call that was made before, with q, k and v alone.

Half a microsecond counts here, so what reads better as functions elsewhere is written out in one: the head of
_eager.forward(), _eager.quick_key(), Plan.run_on_cpu().
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import profiler

from .. import _plans
from .._library import LIBRARY, fail
from .._plans import scratch
from .._structs import DATA_WORD
from . import _eager
from ._eager import NO_EXTRAS

_Q, _K, _V, _OUT, _LSE = (DATA_WORD[name] for name in ("q", "k", "v", "out", "lse"))
_Tensor = torch.Tensor
_kept = _plans.get
_plan_run = LIBRARY.headrace_plan_run
_num_threads = torch.get_num_threads
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_num_dispatch_modes = torch._C._len_torch_dispatch_stack
_num_function_modes = torch._C._len_torch_function_stack
_has_functorch = torch._C._are_functorch_transforms_active
_is_any_autocast = torch._C._is_any_autocast_enabled
_tracing_state = torch._C._get_tracing_state


def is_watched() -> bool:
    """Whether somebody looks at operators as they pass: modes, transforms, autocast, a tracer, the profiler."""
    return bool(
        _num_dispatch_modes()
        or _num_function_modes()
        or _has_functorch()
        or _is_any_autocast()
        or _tracing_state()
        or profiler._is_profiler_enabled
    )


class _Differentiable(torch.autograd.Function):
    """Such a call with gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entry: _eager.Entry, deterministic: bool
    ) -> torch.Tensor:
        lse = torch.empty(entry.lse or (), dtype=entry.result_dtype, device=entry.device)
        out = _start(entry, q, q.data_ptr(), k.data_ptr(), v.data_ptr(), lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call = (entry, deterministic)
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple:
        entry, deterministic = ctx.call
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
        grads = torch.ops.headrace.attention_backward(
            dout, None, *ctx.saved_tensors, *NO_EXTRAS, None, *entry.options, entry.heads_first, deterministic
        )
        return (*grads[:3], None, None)


def _start(
    entry: _eager.Entry, q: torch.Tensor, q_data: int, k_data: int, v_data: int, lse: torch.Tensor | None
) -> torch.Tensor:
    out = q.new_empty_strided(*entry.out)
    try:
        block = entry.blocks.pop()
    except IndexError:
        block = entry.plan.take_block()
    words = block.words
    words[_Q] = q_data
    words[_K] = k_data
    words[_V] = v_data
    words[_OUT] = out.data_ptr()
    if lse is not None:
        words[_LSE] = lse.data_ptr()
    if not entry.is_quick or entry.workspace_bytes > scratch.num_bytes:
        _eager.run(entry, block)
        return out
    status = _plan_run(
        entry.handle, block.tensors_address, block.options_address, scratch.address, entry.workspace_bytes, None
    )
    entry.blocks.append(block)
    if status:
        fail(status)
    return out


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, settings: tuple) -> torch.Tensor | None:
    """out of a plain call that _ops.attention() computed before with these quick_settings, or None. The last of the
    settings says whether the backward has to be deterministic."""
    if (
        _is_compiling()
        or type(q) is not _Tensor
        or type(k) is not _Tensor
        or type(v) is not _Tensor
        or _num_dispatch_modes()
        or _num_function_modes()
        or _has_functorch()
        or _is_any_autocast()
        or _tracing_state()
        or profiler._is_profiler_enabled
    ):
        return None
    q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    needs_grad = _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    entry = _kept((
        settings, needs_grad, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.get_device(), k.get_device(), v.get_device(), (q_data | k_data | v_data) & 15, _num_threads(),
    ))  # fmt: skip
    if entry is None or not (q_data and k_data and v_data):  # tensors without memory look like the CPU's
        return None
    if needs_grad:
        return _Differentiable.apply(q, k, v, entry, settings[-1])
    return _start(entry, q, q_data, k_data, v_data, None)
