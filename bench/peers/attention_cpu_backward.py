#!/usr/bin/env python3
"""The backward of Headrace compared with that of PyTorch's scaled_dot_product_attention on the CPU:
one process, the same memory, the same threads, alternating rounds. bench/peers/README.md has the
protocol."""

import dataclasses
import math

import torch

import attention_cpu
import headrace_abi
from cases import Case, all_cases

# Maximum difference from float32 gradients, relative to their largest element.
LARGEST_DIFFERENCE = {"f32": 1e-4, "bf16": 0.03}


@dataclasses.dataclass(frozen=True)
class BackwardCase(Case):
    def flops(self):
        """Five matmuls; the forward has two."""
        return 2.5 * super().flops()


def backward_cases():
    fields = [dataclasses.asdict(case) for case in all_cases() if case.kind == "prefill"]
    return [BackwardCase(**{**values, "kind": "backward"}) for values in fields]


def make_headrace(library, case, inputs, dout, num_threads):
    """Our call and its gradients."""
    views = [
        attention_cpu.headrace_view(t, case.dtype)
        for t in (inputs.q, inputs.k, inputs.v, inputs.out)
    ]
    causal = headrace_abi.CAUSAL_BOTTOM_RIGHT if case.is_causal else headrace_abi.CAUSAL_NONE
    device = library.cpu_info(num_threads)
    lse = torch.empty(case.batch, case.num_heads, case.seqlen_q)
    lse_view = headrace_abi.tensor(lse.data_ptr(), headrace_abi.F32, lse.shape, lse.stride())
    headrace_abi.Attention(library, *views, causal, device, lse=lse_view)()
    operands = (("q", inputs.q), ("k", inputs.k), ("v", inputs.v))
    grads = {f"d{name}": torch.full_like(t, math.nan) for name, t in operands}
    of_call = {
        name: attention_cpu.headrace_view(t, case.dtype)
        for name, t in (("dout", dout), *grads.items())
    }
    ours = headrace_abi.Attention(
        library, *views, causal, device, lse=lse_view, gradients=of_call
    )
    return ours, list(grads.values()), lse


def make_torch(case, inputs, dout):
    leaves = [t.detach().requires_grad_() for t in (inputs.q, inputs.k, inputs.v)]
    result = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=case.is_causal)
    return lambda: torch.autograd.grad(result, leaves, dout, retain_graph=True)


def check(case, inputs, dout, ours, grads):
    ours()
    floats = [t.float().requires_grad_() for t in (inputs.q, inputs.k, inputs.v)]
    result = torch.nn.functional.scaled_dot_product_attention(*floats, is_causal=case.is_causal)
    expected = torch.autograd.grad(result, floats, dout.float())
    error = max(
        ((got.float() - want).abs().max() / want.abs().max()).item()
        for got, want in zip(grads, expected, strict=True)
    )
    return {"headrace_error": error, "is_correct": error <= LARGEST_DIFFERENCE[case.dtype]}


def run_case(library, case, options, evictor):
    inputs = attention_cpu.Inputs(case)
    generator = torch.Generator().manual_seed(1)
    dout = torch.randn(inputs.out.shape, generator=generator).to(inputs.out.dtype)
    ours, grads, lse = make_headrace(library, case, inputs, dout, options.threads)
    row = {"case": case.name, "group": case.group, "kernel": ours.kernel}
    row.update(check(case, inputs, dout, ours, grads))
    if not options.check:
        sides = {"autograd": make_torch(case, inputs, dout)}
        row["caches"] = "warm"
        row.update(attention_cpu.time_case(case, ours, sides, options, None))
    del lse  # ours reads it
    return row


if __name__ == "__main__":
    attention_cpu.exit_with(
        lambda: attention_cpu.main(__doc__, backward_cases(), run_case)
    )
