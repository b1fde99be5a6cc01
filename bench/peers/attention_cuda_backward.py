#!/usr/bin/env python3
"""The backward of Headrace compared with those of cuDNN and FlashAttention-2 through PyTorch on one GPU: one process,
the same memory, alternating rounds. bench/peers/README.md has the protocol."""

import contextlib
import math
import os
import sys

import torch
from torch.nn.attention import sdpa_kernel

import attention_cuda
import headrace_abi

LARGEST_DIFFERENCE = {"bf16": 0.03, "f16": 0.004}  # relative to the largest element of a gradient
FLOPS = 2.5  # times a forward: five matmuls instead of two
DEFAULT = "default"  # as a peer: our call without --deterministic


@contextlib.contextmanager
def any_kernel():
    name = os.environ.pop("HEADRACE_KERNEL", None)
    try:
        yield
    finally:
        if name is not None:
            os.environ["HEADRACE_KERNEL"] = name


def make_sides(library, case, peers, scale, deterministic):
    """{name: Side}, our call and its gradients, {name: gradients of a peer}."""
    q, k, v, out = attention_cuda.make_tensors(case, scale)
    view = attention_cuda.headrace_view
    stream = torch.cuda.current_stream().cuda_stream
    lse = torch.empty(case.batch, case.num_heads, case.seqlen, device="cuda")
    lse_view = headrace_abi.tensor(lse.data_ptr(), headrace_abi.F32, lse.shape, lse.stride(), headrace_abi.CUDA)
    operands = [view(t, case.dtype) for t in (q, k, v, out)]
    settings = {
        "causal": attention_cuda.causal_of(case), "device": library.cuda_info(), "stream": stream,
        "allocate": attention_cuda.allocate, "lse": lse_view,
    }  # fmt: skip
    with any_kernel():  # HEADRACE_KERNEL names a backward kernel
        headrace_abi.Attention(library, *operands, **settings)()
    dout = torch.randn_like(q) * scale
    keeps = (q, k, v, out, lse, dout)

    def own(deterministic):
        grads = {f"d{name}": torch.full_like(t, math.nan) for name, t in (("q", q), ("k", k), ("v", v))}
        of_call = {name: view(t, case.dtype) for name, t in (("dout", dout), *grads.items())}
        return list(grads.values()), headrace_abi.Attention(
            library, *operands, **settings, gradients=of_call, deterministic=deterministic,
            keeps=(*keeps, *grads.values()),
        )  # fmt: skip

    def peer(backend):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        gqa = {"enable_gqa": True} if case.group > 1 else {}
        with sdpa_kernel(backend):
            result = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=case.is_causal, **gqa)
        return lambda: torch.autograd.grad(result, leaves, dout, retain_graph=True)

    def call_of(name):
        if name != DEFAULT:
            return peer(attention_cuda.BACKENDS[name])
        gradients, call = own(False)
        return lambda: (call(), gradients)[1]

    flops = FLOPS * case.flops()
    grads, ours = own(deterministic)
    sides = {"headrace": attention_cuda.Side(ours, flops)}
    sides.update({name: attention_cuda.Side(call_of(name), flops) for name in peers})
    return sides, ours, grads


def difference_of(ours, theirs):
    worst = [(x.float() - y.float()).abs().max() / y.float().abs().max() for x, y in zip(ours, theirs, strict=True)]
    return max(x.item() for x in worst)


def run_case(library, case, options, evict, known):
    peers = [name for name in options.peers.split(",") if name]
    sides, ours, grads = make_sides(library, case, peers, options.scale, options.deterministic)
    ours()
    difference = max([difference_of(grads, sides[name].call()) for name in peers], default=0.0)
    is_correct = all(bool(torch.isfinite(t).all()) for t in grads) and difference <= LARGEST_DIFFERENCE[case.dtype]
    attention_cuda.run_rounds(sides, options, evict)
    rates = {name: side.rate() for name, side in sides.items()}
    if DEFAULT not in peers:
        attention_cuda.add_fa3(rates, known.get(case.name, {}), options.mode)
    return attention_cuda.row_of(case, "bwd", ours.kernel, sides, rates, FLOPS * case.flops(), difference, is_correct)


def main():
    parser = attention_cuda.make_parser(__doc__, default_peers="cudnn")
    parser.add_argument(
        "--deterministic", action="store_true", help=f"ours: deterministic dq; --peers {DEFAULT}: its cost"
    )
    options = parser.parse_args()
    known = attention_cuda.known_cells("backward_cells")
    return attention_cuda.run_all(
        "attention_cuda_backward", options, lambda library, case, evict: run_case(library, case, options, evict, known)
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except headrace_abi.Error as error:
        print(f"attention_cuda_backward: {error}", file=sys.stderr)
        sys.exit(1)
