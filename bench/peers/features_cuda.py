#!/usr/bin/env python3
"""The cost of features, unusual shapes and unusual inputs on the GPU: each case next to the plain calls it is compared
with, in one process and alternating rounds; f32 next to PyTorch's memory-efficient kernel. Uses headrace.torch."""

import argparse
import dataclasses
import math
import pathlib
import random
import re
import sys
import time
from collections.abc import Callable

import attention_cuda
import report
import torch
from machine import progress
from torch.nn.attention import SDPBackend, sdpa_kernel

import headrace
from headrace._library import LIBRARY
from headrace.torch import attention

SEQLEN, HEADS, HEAD_DIM = 8192, 16, 128
# Calls per round, so that short and long calls load the card equally long; else only long ones hit the power limit.
ROUND_SECONDS, LEAST_LAUNCHES = 0.05, 3
COLUMNS = (
    ("case", "case", "{}"),
    ("tflops", "TFLOP/s", "{:.0f}"),
    ("base", "baseline", "{}"),
    ("base_tflops", "TFLOP/s", "{:.0f}"),
    ("ratio", "ratio", "{:.3f}"),
    ("floor", "at least", "{:.2f}"),
    ("kernel", "kernel", "{}"),
)
FORMATS = report.formats(COLUMNS, "ratio")


@dataclasses.dataclass
class Case:
    name: str
    group: str
    floor: float  # minimum ratio
    base: str
    make: Callable  # () -> ((call, flops), ((weight, call of a base, its flops), ...), kernel)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda").to(dtype)


def pairs(seqlen_q, seqlen_k, causal):
    """Number of visible (query, key) pairs; with a causal mask seqlen_k must be at least seqlen_q."""
    return seqlen_q * (seqlen_k - seqlen_q) + seqlen_q * (seqlen_q + 1) / 2 if causal else seqlen_q * seqlen_k


def kernel_of(*args, **options):
    text = headrace.explain(*args, **options)
    return re.search(r"(\w+): -> selected", str(text))[1]


def feature(name, floor, causal=False, seqlen=SEQLEN, share=1.0, **make):
    """A dense call with a feature, next to the same call without it."""

    def build():
        batch = 16384 // seqlen
        q, k, v = (normal(batch, seqlen, HEADS, HEAD_DIM) for _ in range(3))
        options = {key: value(seqlen) if callable(value) else value for key, value in make.items()}
        flops = 4 * batch * HEADS * HEAD_DIM * pairs(seqlen, seqlen, causal)
        return (
            (lambda: attention(q, k, v, causal=causal, **options), flops * share),
            ((1, lambda: attention(q, k, v, causal=causal), flops),),
            kernel_of(q, k, v, causal=causal, **options),
        )

    text = f"{name}_{'causal' if causal else 'none'}_s{seqlen}"
    return Case(text, "features", floor, "plain", build)


def lengths_of(kind, total):
    draw = random.Random(1)
    if kind == "equal":
        return [total // 8] * 8
    if kind == "one_long":
        return [total - 31 * 128] + [128] * 31
    lengths = []
    while sum(lengths) < total:
        lengths.append(int(math.exp(draw.uniform(math.log(128), math.log(16384)))))
    lengths[-1] -= sum(lengths) - total
    draw.shuffle(lengths)
    return [length for length in lengths if length > 0]


def ragged_options(lengths):
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    return dict(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=max(lengths), max_seqlen_k=max(lengths))


def ragged(kind, causal):
    """A ragged batch next to a dense one with as many tokens, whose equal sequence length gives about as many (query,
    key) pairs."""

    def build():
        total = 65536
        lengths = lengths_of(kind, total)
        q, k, v = (normal(total, HEADS, HEAD_DIM) for _ in range(3))
        mean = sum(n * n for n in lengths) / total
        seqlen = min((256 << i for i in range(9)), key=lambda n: abs(math.log(n / mean)))
        dense = [normal(total // seqlen, seqlen, HEADS, HEAD_DIM) for _ in range(3)]
        options = dict(causal=causal, **ragged_options(lengths))
        work = 4 * HEADS * HEAD_DIM
        return (
            (lambda: attention(q, k, v, **options), work * sum(pairs(n, n, causal) for n in lengths)),
            ((1, lambda: attention(*dense, causal=causal), work * total // seqlen * pairs(seqlen, seqlen, causal)),),
            kernel_of(q, k, v, **options),
        )

    return Case(f"ragged_{kind}_{'causal' if causal else 'none'}", "ragged", 0.92, "equal lengths", build)


def ragged_batch(kind):
    lengths = lengths_of(kind, 65536)
    return lambda heads: ((sum(lengths), heads), lengths, ragged_options(lengths))


def dense_batch(**features):
    return lambda heads: ((2, SEQLEN, heads), [SEQLEN] * 2, {name: value(heads) for name, value in features.items()})


def deterministic(name, causal, head_dim, make):
    """Deterministic gradients of q, k, v and of bias and sinks if present, next to the default ones. make(heads): the
    leading axes of q, the sequence lengths, options."""

    def build():
        heads = HEADS * HEAD_DIM // head_dim
        axes, lengths, options = make(heads)
        q, k, v, dout = (normal(*axes, head_dim) for _ in range(4))
        options["causal"] = causal
        leaves = [x.requires_grad_() for x in (q, k, v, options.get("bias"), options.get("sinks")) if x is not None]

        def gradients(deterministic):
            with torch.enable_grad():
                out = attention(q, k, v, deterministic=deterministic, **options)
            return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)

        flops = 2.5 * 4 * heads * head_dim * sum(pairs(n, n, causal) for n in lengths)
        kernel = kernel_of(q, k, v, backward=True, deterministic=True, **options)
        return (gradients(True), flops), ((1, gradients(False), flops),), kernel

    floor = 1 / 1.15 if head_dim > 128 else 1 / 1.08
    return Case(f"{name}_hd{head_dim}_{'causal' if causal else 'none'}", "deterministic", floor, "default", build)


def deterministic_cases():
    features = {
        "dense": dense_batch(),
        "sinks": dense_batch(sinks=lambda heads: torch.randn(heads, device="cuda")),
        "alibi": dense_batch(alibi_slopes=lambda heads: torch.arange(1.0, heads + 1, device="cuda") / heads),
        "softcap": dense_batch(softcap=lambda heads: 30.0),
        "bias": dense_batch(bias=lambda heads: normal(1, 1, SEQLEN, SEQLEN)),
        "dropout": dense_batch(dropout_p=lambda heads: 0.1, dropout_seed=lambda heads: 1),
        "window": dense_batch(window=lambda heads: (1024, 0)),
    }
    for causal in (False, True):
        for head_dim in (64, 128, 256):
            for kind in ("equal", "log_uniform", "one_long"):
                yield deterministic(f"ragged_{kind}", causal, head_dim, ragged_batch(kind))
        for name, make in features.items():
            if causal or name != "window":
                yield deterministic(name, causal, 128, make)


def float32(head_dim, causal, seqlen):
    def build():
        batch, heads = max(16384 // seqlen, 1), 2048 // head_dim
        q, k, v = (normal(batch, seqlen, heads, head_dim, dtype=torch.float32) for _ in range(3))
        views = [x.transpose(1, 2) for x in (q, k, v)]

        def peer():
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                torch.nn.functional.scaled_dot_product_attention(*views, is_causal=causal)

        flops = 4 * batch * heads * head_dim * pairs(seqlen, seqlen, causal)
        kernel = kernel_of(q, k, v, causal=causal)
        return (lambda: attention(q, k, v, causal=causal), flops), ((1, peer, flops),), kernel

    name = f"f32_hd{head_dim}_{'causal' if causal else 'none'}_s{seqlen}"
    return Case(name, "f32", 1.0, "memory-efficient", build)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Defaults as in the FlashAttention papers: 16384 tokens, hidden size 2048."""

    seqlen: int = SEQLEN
    head_dim: int = HEAD_DIM
    head_dim_v: int = 0  # 0: head_dim
    seqlen_q: int = 0  # 0: seqlen
    heads: int = 0
    group: int = 1

    def make(self, causal):
        """(q, k, v) and the FLOP of a call."""
        dim_v, seqlen_q = self.head_dim_v or self.head_dim, self.seqlen_q or self.seqlen
        heads, batch = self.heads or 2048 // self.head_dim, max(16384 // seqlen_q, 1)
        q = normal(batch, seqlen_q, heads, self.head_dim)
        k = normal(batch, self.seqlen, heads // self.group, self.head_dim)
        v = normal(batch, self.seqlen, heads // self.group, dim_v)
        return (q, k, v), 2 * batch * heads * (self.head_dim + dim_v) * pairs(seqlen_q, self.seqlen, causal)


def neighbour(name, causal, shape, around):
    """A shape next to the surrounding cells of the grid: (weight, shape) each; the weights add up to 1."""

    def build():
        (q, k, v), flops = shape.make(causal)
        bases = []
        for weight, cell in around:
            tensors, work = cell.make(causal)
            bases.append((weight, lambda tensors=tensors: attention(*tensors, causal=causal), work))
        kernel = kernel_of(q, k, v, causal=causal)
        return (lambda: attention(q, k, v, causal=causal), flops), tuple(bases), kernel

    text = f"{name}_{'causal' if causal else 'none'}"
    return Case(text, "neighbours", 0.97, "cells around", build)


def neighbours():
    """Shapes between two cells, compared with the interpolated rate over head_dim or log(seqlen)."""
    for causal in (False, True):
        for head_dim in (64, 128, 256):
            for seqlen in (1024, 4096):
                around = [(0.5, Shape(seqlen // 2, head_dim)), (0.5, Shape(seqlen * 2, head_dim))]
                yield neighbour(f"hd{head_dim}_s{seqlen}", causal, Shape(seqlen, head_dim), around)
        cell, longest = [(1, Shape())], [(1, Shape(16384))]
        yield neighbour("s8191", causal, Shape(8191), cell)
        yield neighbour("s32768", causal, Shape(32768), longest)
        for heads in (12, 40):
            yield neighbour(f"{heads}_heads", causal, Shape(heads=heads), cell)
        for heads, kv_heads in ((16, 4), (32, 8), (64, 8)):
            yield neighbour(f"gqa_{heads}_{kv_heads}", causal, Shape(heads=heads, group=heads // kv_heads), cell)
        yield neighbour("sq2048_sk8192", causal, Shape(seqlen_q=2048), cell)
        for head_dim, head_dim_v, share in ((80, 80, 0.25), (96, 96, 0.5), (112, 112, 0.75)):
            around = [(1 - share, Shape(head_dim=64)), (share, Shape())]
            yield neighbour(f"hd{head_dim}", causal, Shape(head_dim=head_dim, head_dim_v=head_dim_v), around)
        for head_dim, head_dim_v, share in ((192, 192, 0.5), (192, 128, 0.25)):
            around = [(1 - share, Shape()), (share, Shape(head_dim=256))]
            name = f"hd{head_dim}" + (f"_{head_dim_v}" if head_dim_v != head_dim else "")
            yield neighbour(name, causal, Shape(head_dim=head_dim, head_dim_v=head_dim_v), around)
    yield neighbour("s131072", True, Shape(131072), [(1, Shape(16384))])


def with_deviation(deviation):
    """Inputs whose scores have this standard deviation."""
    return lambda q, k, v: (q * deviation, k, v)


def with_dominant_key(q, k, v):
    """One key, a third into the sequence, that dominates every query that sees it."""
    direction = torch.nn.functional.normalize(normal(q.shape[-1]), dim=0)
    k = k.clone()
    k[:, k.shape[1] // 3] = 20 * q.shape[-1] ** 0.5 * direction
    return q + 3 * direction, k, v


def inputs(name, causal, shape, change):
    """Inputs that are not standard normal next to standard normal ones, in one shape."""

    def build():
        (q, k, v), flops = shape.make(causal)
        x, y, z = (tensor.to(q.dtype) for tensor in change(q, k, v))
        return (
            (lambda: attention(x, y, z, causal=causal), flops),
            ((1, lambda: attention(q, k, v, causal=causal), flops),),
            kernel_of(q, k, v, causal=causal),
        )

    return Case(f"{name}_hd{shape.head_dim}_{'causal' if causal else 'none'}", "inputs", 0.85, "normal", build)


def activations(path):
    """Attention inputs recorded from a model (activations.py), repeated to the number of tokens."""
    for layer, (q, k, v) in torch.load(path, map_location="cuda").items():
        seqlen, heads, head_dim = q.shape
        shape = Shape(seqlen, head_dim, heads=heads, group=heads // k.shape[1])
        batch = max(16384 // seqlen, 1)
        repeated = tuple(x.expand(batch, *x.shape).contiguous() for x in (q, k, v))
        yield inputs(f"activations_{layer}", True, shape, lambda *_, repeated=repeated: repeated)


def unusual_inputs(path):
    for causal in (False, True):
        for head_dim in (64, 128, 256):
            for deviation in (8, 30, 100):
                yield inputs(f"deviation{deviation}", causal, Shape(head_dim=head_dim), with_deviation(deviation))
            yield inputs("dominant_key", causal, Shape(head_dim=head_dim), with_dominant_key)
    if path:
        yield from activations(path)


def all_cases(path_of_activations):
    slopes = torch.arange(1, HEADS + 1, device="cuda", dtype=torch.float32) / HEADS
    for causal in (False, True):
        yield feature("sinks", 0.99, causal, sinks=torch.randn(HEADS, device="cuda"))
        yield feature("lse", 0.98, causal, return_lse=True)
        yield feature("alibi", 0.90, causal, alibi_slopes=slopes)
        yield feature("softcap", 0.70, causal, softcap=30.0)
        yield feature("bias", 0.65, causal, bias=lambda n: normal(1, 1, n, n))
        yield feature("dropout", 0.60, causal, dropout_p=0.1, dropout_seed=1)
    window, seqlen = 1024, 16384
    share = (window * (window + 1) / 2 + (seqlen - window) * (window + 1)) / pairs(seqlen, seqlen, True)
    yield feature("window", 0.75, True, seqlen, share, window=(window, 0))
    for causal in (False, True):
        for kind in ("equal", "log_uniform", "one_long"):
            yield ragged(kind, causal)
    yield from deterministic_cases()
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            for seqlen in (512, 2048, 8192, 16384):
                yield float32(head_dim, causal, seqlen)
    yield from neighbours()
    yield from unusual_inputs(path_of_activations)


def launches_of(call):
    call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    wanted = int(ROUND_SECONDS / (time.perf_counter() - started))
    return max(LEAST_LAUNCHES, min(attention_cuda.LAUNCHES, wanted))


def run_case(case, options, evict):
    (call, flops), bases, kernel = case.make()
    mine = attention_cuda.Side(call, flops)
    weights = [weight for weight, _, _ in bases]
    others = [attention_cuda.Side(other, work) for _, other, work in bases]
    launches = {side: launches_of(side.call) for side in (mine, *others)}
    for _ in range(options.rounds):
        for side, count in launches.items():
            side.round(evict, attention_cuda.REST_SECONDS, count)
    base = sum(weight * side.rate() for weight, side in zip(weights, others, strict=True))
    return {
        "case": case.name, "group": case.group, "tflops": mine.rate(), "base": case.base, "base_tflops": base,
        "ratio": mine.rate() / base, "floor": case.floor, "kernel": kernel,
        "rounds": {"headrace": mine.rates, case.base: [side.rates for side in others]},
    }


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--filter", type=re.compile, default="", help="regex on GROUP/NAME of cases")
    parser.add_argument("--activations", type=pathlib.Path, help="output of bench/peers/activations.py")
    parser.add_argument("--list", action="store_true", help="print the case names and stop")
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds of each side")
    parser.add_argument("--format", choices=sorted(FORMATS), default="text")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON result to this file")
    parser.add_argument("--revision", help="revision of the library, outside a git checkout")
    return parser.parse_args()


def main():
    options = parse_options()
    torch.manual_seed(0)
    cases = [case for case in all_cases(options.activations) if re.search(options.filter, f"{case.group}/{case.name}")]
    if options.list:
        print("\n".join(f"{case.group}/{case.name}" for case in cases))
        return 0
    evict = torch.empty(attention_cuda.EVICT_BYTES, dtype=torch.uint8, device="cuda")
    rows = []
    with torch.no_grad():
        for index, case in enumerate(cases):
            progress(f"[{index + 1}/{len(cases)}] {case.name}")
            rows.append(run_case(case, options, evict))
    progress("")
    meta = attention_cuda.meta_of("peers/features_cuda", LIBRARY.headrace_build_info().decode(), options)
    result = {"meta": meta, "rows": rows, "summary": report.summary_of(rows)}
    sys.stdout.write(FORMATS[options.format](result))
    if options.out:
        options.out.write_text(report.as_json(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
