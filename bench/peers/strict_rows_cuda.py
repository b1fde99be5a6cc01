#!/usr/bin/env python3
"""strict_rows on the GPU beside the default, in one process: decode steps, few queries, and prompts. With strict_rows
the last query must have the same bits alone. Times are of calls in a CUDA graph. Rounds alternate; before each, a
stream through 192 MB flushes the L2."""

import argparse
import dataclasses
import pathlib
import re
import statistics
import sys

import attention_cuda
import decode_cuda
import headrace_abi
import report
import torch
from machine import progress

COLUMNS = (
    ("case", "case", "{}"),
    ("default_us", "default us", "{:.1f}"),
    ("strict_us", "strict us", "{:.1f}"),
    ("ratio", "default/strict", "{:.2f}"),
    ("difference", "difference", "{:.1e}"),
    ("is_correct", "correct", "{}"),
    ("default_kernel", "default kernel", "{}"),
    ("kernel", "strict kernel", "{}"),
)
FORMATS = report.formats(COLUMNS, "default/strict")


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    queries: int
    seqlen: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def name(self):
        return f"b{self.batch}_q{self.queries}_s{self.seqlen}_h{self.heads}_{self.kv_heads}_d{self.head_dim}"


CASES = (
    [Case(1, 1, seqlen) for seqlen in (1024, 4096, 8192, 32768, 131072)]
    + [Case(8, 1, 8192), Case(64, 1, 4096), Case(64, 1, 8192), Case(256, 1, 1024), Case(64, 1, 4096, 32, 32)]
    + [Case(64, 1, 4096, 16, 4, 64), Case(64, 1, 4096, 16, 4, 256), Case(1, 1, 32768, 16, 4, 256)]
    + [Case(1, 8, 32768), Case(64, 8, 4096)]
    + [Case(1, 2048, 10240), Case(1, 8192, 8192), Case(16, 1024, 1024), Case(8, 2048, 2048)]
    + [Case(1, 8192, 8192, 16, 4, 64), Case(1, 8192, 8192, 16, 4, 256)]
)


def run_case(library, case, options, evict):
    torch.manual_seed(0)
    random = lambda seqlen, heads: torch.randn(
        (case.batch, seqlen, heads, case.head_dim), device="cuda"
    ).bfloat16()
    q, k, v = random(case.queries, case.heads), random(case.seqlen, case.kv_heads), random(case.seqlen, case.kv_heads)
    outs = [torch.empty_like(q), torch.empty_like(q)]
    causal = headrace_abi.CAUSAL_BOTTOM_RIGHT if case.queries > 1 else headrace_abi.CAUSAL_NONE
    sides = [
        decode_cuda.Calls(library, (q, k, v, out), causal=causal, strict_rows=is_strict)
        for is_strict, out in enumerate(outs)
    ]
    for side in sides:
        side()
    last = torch.empty_like(q[:, -1:])
    decode_cuda.Calls(library, (q[:, -1:], k, v, last), strict_rows=True)()
    torch.cuda.synchronize()
    has_equal_bits = torch.equal(outs[1][:, -1:], last)
    difference = (outs[0].float() - outs[1].float()).abs().max().item()
    graphs = [decode_cuda.graph_of(side, 1) for side in sides]
    times = [[], []]
    for _ in range(options.rounds + 1):  # the first warms up
        for graph, of_side in zip(graphs, times, strict=True):
            of_side.append(decode_cuda.microseconds(graph, 1, evict))
    default_us, strict_us = (statistics.median(of_side[1:]) for of_side in times)
    return {
        "case": case.name, "group": "prompts" if case.queries > 16 else "decode", **dataclasses.asdict(case),
        "default_us": default_us, "strict_us": strict_us, "ratio": default_us / strict_us, "difference": difference,
        "has_equal_bits": has_equal_bits,
        "is_correct": bool(torch.isfinite(outs[1]).all()) and difference <= 2e-2 and has_equal_bits,
        "default_kernel": sides[0].kernel, "kernel": sides[1].kernel, "rounds_us": times,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--filter", type=re.compile, default="", help="regex on case names")
    parser.add_argument("--rounds", type=int, default=15, help="alternating rounds of each side")
    parser.add_argument("--format", choices=sorted(FORMATS), default="text")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON result to this file")
    parser.add_argument("--library", help="libheadrace.so (HEADRACE_LIBRARY or build/*/src)")
    parser.add_argument("--revision", help="revision of the library, outside a git checkout")
    options = parser.parse_args()
    library = headrace_abi.Library(options.library)
    evict = torch.empty(decode_cuda.EVICT_BYTES, dtype=torch.uint8, device="cuda")
    cases, rows = [case for case in CASES if re.search(options.filter, case.name)], []
    for index, case in enumerate(cases):
        progress(f"[{index + 1}/{len(cases)}] {case.name}")
        rows.append(run_case(library, case, options, evict))
    progress("")
    meta = attention_cuda.meta_of("peers/strict_rows_cuda", library.build_info(), options)
    result = {"meta": meta, "rows": rows, "summary": report.summary_of(rows)}
    sys.stdout.write(FORMATS[options.format](result))
    if options.out:
        options.out.write_text(report.as_json(result))
    return 0 if all(row["is_correct"] for row in rows) else 1


if __name__ == "__main__":
    try:
        with torch.no_grad():
            sys.exit(main())
    except headrace_abi.Error as error:
        print(f"strict_rows_cuda: {error}", file=sys.stderr)
        sys.exit(1)
