"""The backward of attention, through the library's C ABI."""

from __future__ import annotations

from typing import Any

import torch

from .. import _plans
from .._arguments import EXTRA_NAMES
from .._plans import Options
from . import _eager

_NUM_EXTRAS = len(EXTRA_NAMES)


def attention_backward(
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv, dbias, dsinks), the last two empty without bias and sinks.

    `rest`: the extras, the dropout state and the options of the forward, heads_first, deterministic, as the schema in
    _ops.py lists them. Gradients have the shapes and dtypes of what they belong to; rows that see no key give zeros.

    Raises:
        NotImplementedError: no kernel of this build takes the problem or the device.
        ValueError: an argument broke a rule.
    """
    extras = dict(zip(EXTRA_NAMES, rest[:_NUM_EXTRAS], strict=True))
    dropout_state, options = rest[_NUM_EXTRAS], Options(*rest[_NUM_EXTRAS + 1 : -2])
    heads_first, deterministic = rest[-2:]
    operands = {name: _inner_contiguous(t) for name, t in (("q", q), ("k", k), ("v", v), ("out", out))}
    dout = _inner_contiguous(dout)
    grads = {f"d{name}": torch.empty_like(t) for name, t in (("q", q), ("k", k), ("v", v))}
    views = {name: _eager.view_of(name, t, heads_first) for name, t in operands.items()}
    views["lse"] = _eager.view_of("lse", lse)
    views.update({name: _eager.view_of(name, t) for name, t in extras.items() if t is not None})
    # Where the gradient's last axis has gaps, as its input's has, the library writes beside it.
    written = {name: _inner_contiguous(t) for name, t in grads.items()}
    of_call = {name: _eager.view_of(name, t, heads_first) for name, t in (("dout", dout), *written.items())}
    if dlse is not None:
        of_call["dlse"] = _eager.view_of("dlse", dlse)
    for name in ("bias", "sinks"):
        tensor = extras[name]
        grads["d" + name] = _eager.empty_results(q) if tensor is None else torch.empty_like(tensor)
        if tensor is not None:
            of_call["d" + name] = _eager.view_of("d" + name, grads["d" + name])
    seed, offset = (0, 0) if dropout_state is None else (n & 0xFFFFFFFFFFFFFFFF for n in dropout_state.tolist())
    _plans.run_backward(views, of_call, options, (seed, offset), deterministic, *_resources(q.device))
    for name, tensor in written.items():
        if tensor is not grads[name]:
            grads[name].copy_(tensor)
    return grads["dq"], grads["dk"], grads["dv"], grads["dbias"], grads["dsinks"]


def _resources(device: torch.device) -> tuple[int, Any, int | None]:
    """Threads, scratch memory and stream: on a GPU PyTorch's allocator, which knows streams and graphs."""
    if device.type != "cuda":
        return torch.get_num_threads(), _plans.host_memory, None

    def allocate(num_bytes: int) -> tuple[torch.Tensor, int]:
        memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return memory, memory.data_ptr()

    return 0, allocate, _eager._raw_stream(device.index)


def _inner_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if _eager._needs_copy(tensor) else tensor
