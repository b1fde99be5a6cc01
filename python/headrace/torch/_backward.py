"""The backward of attention: everything around it is there (operator, saved tensors, autograd), this is not."""

from __future__ import annotations

from typing import Any

import torch


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
    _ops.py lists them.
    """
    raise NotImplementedError(
        "attention_backward: this version of the library has no backward kernel behind its C ABI (headrace_"
        "attention_backward is missing), so out cannot be differentiated; call under torch.no_grad() or on detached "
        "tensors, or train with torch.nn.functional.scaled_dot_product_attention"
    )
