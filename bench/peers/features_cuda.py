#!/usr/bin/env python3
"""What features cost on the GPU: each case beside the plain call it is compared with, in one process and in
alternating rounds; f32 beside PyTorch's memory-efficient kernel. Through the Python package (headrace.torch)."""

import argparse
import dataclasses
import math
import pathlib
import random
import re
import sys
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
COLUMNS = (
    ("case", "case", "{}"),
    ("tflops", "TFLOP/s", "{:.0f}"),
    ("base", "beside", "{}"),
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
    floor: float  # of the ratio
    base: str
    make: Callable  # () -> ((call, flops), (call of the base, its flops), kernel)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda").to(dtype)


def pairs(seqlen_q, seqlen_k, causal):
    return seqlen_q * (seqlen_q + 1) / 2 if causal else seqlen_q * seqlen_k


def kernel_of(*args, **options):
    text = headrace.explain(*args, **options)
    return re.search(r"(\w+): -> selected", str(text))[1]


def feature(name, floor, causal=False, seqlen=SEQLEN, share=1.0, **make):
    """A dense call with something more, beside the same without it."""

    def build():
        batch = 16384 // seqlen
        q, k, v = (normal(batch, seqlen, HEADS, HEAD_DIM) for _ in range(3))
        options = {key: value(seqlen) if callable(value) else value for key, value in make.items()}
        flops = 4 * batch * HEADS * HEAD_DIM * pairs(seqlen, seqlen, causal)
        return (
            (lambda: attention(q, k, v, causal=causal, **options), flops * share),
            (lambda: attention(q, k, v, causal=causal), flops),
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


def ragged(kind, causal):
    """A ragged batch beside a dense one of as many tokens whose sequences are equal: of the length at which it has
    about as many pairs of queries and keys."""

    def build():
        total = 65536
        lengths = lengths_of(kind, total)
        cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
        q, k, v = (normal(total, HEADS, HEAD_DIM) for _ in range(3))
        mean = sum(n * n for n in lengths) / total
        seqlen = min((256 << i for i in range(9)), key=lambda n: abs(math.log(n / mean)))
        dense = [normal(total // seqlen, seqlen, HEADS, HEAD_DIM) for _ in range(3)]
        options = dict(
            causal=causal, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=max(lengths), max_seqlen_k=max(lengths)
        )
        work = 4 * HEADS * HEAD_DIM
        return (
            (lambda: attention(q, k, v, **options), work * sum(pairs(n, n, causal) for n in lengths)),
            (lambda: attention(*dense, causal=causal), work * total // seqlen * pairs(seqlen, seqlen, causal)),
            kernel_of(q, k, v, **options),
        )

    return Case(f"ragged_{kind}_{'causal' if causal else 'none'}", "ragged", 0.92, "equal lengths", build)


def float32(head_dim, causal, seqlen):
    def build():
        batch, heads = max(16384 // seqlen, 1), 2048 // head_dim
        q, k, v = (normal(batch, seqlen, heads, head_dim, dtype=torch.float32) for _ in range(3))
        views = [x.transpose(1, 2) for x in (q, k, v)]

        def peer():
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                torch.nn.functional.scaled_dot_product_attention(*views, is_causal=causal)

        flops = 4 * batch * heads * head_dim * pairs(seqlen, seqlen, causal)
        return (lambda: attention(q, k, v, causal=causal), flops), (peer, flops), kernel_of(q, k, v, causal=causal)

    name = f"f32_hd{head_dim}_{'causal' if causal else 'none'}_s{seqlen}"
    return Case(name, "f32", 1.0, "memory-efficient", build)


def all_cases():
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
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            for seqlen in (512, 2048, 8192, 16384):
                yield float32(head_dim, causal, seqlen)


def run_case(case, options, evict):
    (call, flops), (base_call, base_flops), kernel = case.make()
    sides = attention_cuda.Side(call, flops), attention_cuda.Side(base_call, base_flops)
    for _ in range(options.rounds):
        for side in sides:
            side.round(evict, attention_cuda.REST_SECONDS)
    mine, base = (side.rate() for side in sides)
    return {
        "case": case.name, "group": case.group, "tflops": mine, "base": case.base, "base_tflops": base,
        "ratio": mine / base, "floor": case.floor, "kernel": kernel,
        "rounds": {"headrace": sides[0].rates, case.base: sides[1].rates},
    }


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--filter", type=re.compile, default="", help="regex on case names")
    parser.add_argument("--rounds", type=int, default=3, help="of each side, alternating")
    parser.add_argument("--format", choices=sorted(FORMATS), default="text")
    parser.add_argument("--out", type=pathlib.Path, help="write the JSON result here as well")
    parser.add_argument("--revision", help="of the library, where this is no git checkout")
    return parser.parse_args()


def main():
    options = parse_options()
    torch.manual_seed(0)
    cases = [case for case in all_cases() if re.search(options.filter, case.name)]
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
