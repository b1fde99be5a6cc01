#!/usr/bin/env python3
"""Decode on the GPU where the sequences of a batch begin with the same keys: private copies of the prefix, the same
pages without and with max_shared_prefix, in one process. Times are of calls in a CUDA graph. Rounds alternate; before
each, a stream through 192 MB flushes the L2."""

import argparse
import dataclasses
import pathlib
import re
import statistics
import sys

import attention_cuda
import headrace_abi
import report
import torch
from decode_cuda import EVICT_BYTES, HEAD_DIM, Calls, graph_of, microseconds
from machine import progress

COLUMNS = (
    ("case", "case", "{}"),
    ("private_us", "private us", "{:.1f}"),
    ("pages_us", "shared pages us", "{:.1f}"),
    ("prefix_us", "max_shared_prefix us", "{:.1f}"),
    ("ratio", "private/prefix", "{:.2f}"),
    ("is_correct", "equal bits", "{}"),
    ("kernel", "kernel", "{}"),
)
FORMATS = report.formats(COLUMNS, "private/prefix")


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    prefix: int
    own: int
    heads: int
    kv_heads: int
    page_size: int = 16

    @property
    def name(self):
        pages = "" if self.page_size == 16 else f"_p{self.page_size}"
        return f"b{self.batch}_s{self.prefix}+{self.own}_h{self.heads}_{self.kv_heads}{pages}"


CASES = (
    [Case(64, prefix, 256, 32, 8) for prefix in (512, 1024, 4096, 16384)]
    + [Case(batch, 4096, 256, 32, 8) for batch in (8, 16, 32, 128, 256)]
    + [Case(64, 4096, 256, 32, 32), Case(64, 4096, 256, 64, 8), Case(64, 4096, 2048, 32, 8)]
    + [Case(64, 4096, 256, 32, 8, 64), Case(64, 4096, 256, 32, 8, 1)]
)


def run_case(library, case, options, evict):
    torch.manual_seed(0)
    q = torch.randn((case.batch, 1, case.heads, HEAD_DIM), device="cuda").bfloat16()
    shared, own = case.prefix // case.page_size, case.own // case.page_size
    used = torch.full((case.batch,), case.prefix + case.own, dtype=torch.int32, device="cuda")
    shape = (case.batch * (shared + own), case.page_size, case.kv_heads, HEAD_DIM)
    k, v = (torch.randn(shape, device="cuda").bfloat16() for _ in "kv")
    private = torch.randperm(shape[0]).int().view(case.batch, shared + own).cuda()
    for x in (k, v):  # the private copies of the prefix
        prefix = x[private[0, :shared]]
        for pages in private[1:, :shared]:
            x[pages] = prefix
    table = private.clone()
    table[:, :shared] = private[0, :shared]
    outs = [torch.empty_like(q) for _ in range(3)]
    call = lambda out, table, prefix=0: Calls(
        library, (q, k, v, out), {"block_table": table, "seqused_k": used}, max_shared_prefix=prefix
    )
    sides = {
        "private": call(outs[0], private),
        "pages": call(outs[1], table),
        "prefix": call(outs[2], table, case.prefix),
    }
    for side in sides.values():
        side()
    graphs = {name: graph_of(side, 1) for name, side in sides.items()}
    times = {name: [] for name in graphs}
    for _ in range(options.rounds + 1):  # the first warms up
        for name, graph in graphs.items():
            times[name].append(microseconds(graph, 1, evict))
    us = {name: statistics.median(values[1:]) for name, values in times.items()}
    return {
        "case": case.name, "group": f"{case.prefix} shared", **dataclasses.asdict(case), "head_dim": HEAD_DIM,
        "kernel": sides["prefix"].kernel, **{f"{name}_us": value for name, value in us.items()},
        "ratio": us["private"] / us["prefix"], "is_correct": all(torch.equal(outs[0], x) for x in outs),
        "rounds_us": times,
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
    evict = torch.empty(EVICT_BYTES, dtype=torch.uint8, device="cuda")
    cases, rows = [case for case in CASES if re.search(options.filter, case.name)], []
    for index, case in enumerate(cases):
        progress(f"[{index + 1}/{len(cases)}] {case.name}")
        rows.append(run_case(library, case, options, evict))
    progress("")
    meta = attention_cuda.meta_of("peers/shared_prefix_cuda", library.build_info(), options)
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
        print(f"shared_prefix_cuda: {error}", file=sys.stderr)
        sys.exit(1)
