#!/usr/bin/env python3
"""Decode on the GPU: one query per sequence over a contiguous cache and over shuffled pages of it, next to cuDNN
(contiguous) in the same process. --few-rows: other head dims and several queries, beside the same call without key
splits (num_splits=1). Times are of calls in a CUDA graph. Rounds alternate; before each, a stream through 192 MB
flushes the L2, unless --warm."""

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
from machine import progress
from torch.nn.attention import SDPBackend, sdpa_kernel

EVICT_BYTES = 192 << 20
CALLS = 20  # in a graph of warm calls; a graph of cold calls has one
LARGEST_DIFFERENCE = 4e-3
COLUMNS = (
    ("case", "case", "{}"),
    ("headrace_us", "headrace us", "{:.1f}"),
    ("paged_us", "paged us", "{:.1f}"),
    ("cudnn_us", "cudnn us", "{:.1f}"),
    ("whole_us", "whole us", "{:.1f}"),
    ("ratio", "cudnn/headrace", "{:.2f}"),
    ("paged_ratio", "cudnn/paged", "{:.2f}"),
    ("gbytes", "GB/s", "{:.0f}"),
    ("paged_gbytes", "paged", "{:.0f}"),
    ("difference", "difference", "{:.1e}"),
    ("is_correct", "correct", "{}"),
    ("kernel", "kernel", "{}"),
)
FORMATS = report.formats(COLUMNS, "cudnn/headrace")


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    seqlen: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    queries: int = 1

    @property
    def name(self):
        name = f"b{self.batch}_s{self.seqlen}_h{self.heads}_{self.kv_heads}"
        return name + (f"_d{self.head_dim}_q{self.queries}" if self in FEW_ROWS else "")

    def bytes(self):
        return 2 * 2 * self.batch * self.seqlen * self.kv_heads * self.head_dim


CASES = (
    [Case(1, seqlen, 32, 8) for seqlen in (256, 512, 1024, 8192, 32768, 131072)]
    + [Case(8, 8192, 32, 8), Case(64, 4096, 32, 8), Case(64, 8192, 32, 8), Case(256, 1024, 32, 8)]
    + [Case(128, 2048, 64, 8), Case(64, 4096, 32, 32), Case(4, 65536, 64, 8)]
)
# Of up to 64 rows, which another kernel computes.
SHAPES = ((16, 4, 256, 1), (16, 4, 192, 1), (32, 8, 128, 5), (32, 8, 128, 16), (16, 4, 64, 8))
LENGTHS = ((1, 4096), (1, 32768), (1, 131072), (8, 4096), (64, 4096))
FEW_ROWS = [
    Case(batch, seqlen, heads, kv_heads, head_dim, queries)
    for heads, kv_heads, head_dim, queries in SHAPES
    for batch, seqlen in LENGTHS
]


def graph_of(call, count):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                call()
    torch.cuda.synchronize()
    return graph


def microseconds(graph, count, evict):
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    if evict is not None:
        evict.sum()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


def alternate(graphs, count, rounds, evict):
    """Medians of each graph of `count` calls, and all rounds, by name. The first round warms up."""
    times = {name: [] for name in graphs}
    for _ in range(rounds + 1):
        for name, graph in graphs.items():
            times[name].append(microseconds(graph, count, evict))
    return {name: statistics.median(values[1:]) for name, values in times.items()}, times


def int32_view(tensor):
    return headrace_abi.tensor(tensor.data_ptr(), headrace_abi.I32, tensor.shape, tensor.stride(), headrace_abi.CUDA)


def random_operands(case):
    """q, k and v, each [batch, seqlen, heads, head_dim], the same in every run."""
    torch.manual_seed(0)
    sizes = ((case.queries, case.heads), (case.seqlen, case.kv_heads), (case.seqlen, case.kv_heads))
    return tuple(torch.randn((case.batch, *size, case.head_dim), device="cuda").bfloat16() for size in sizes)


def shuffled_pages(case, k, v, page_size):
    """k and v as pages [num_pages, page_size, kv_heads, dim] in random order, block_table and seqused_k."""
    columns = case.seqlen // page_size
    order = torch.randperm(case.batch * columns, device="cuda")
    pages = []
    for x in (k, v):  # [batch, seqlen, kv_heads, dim]
        rows = x.reshape(case.batch * columns, page_size, case.kv_heads, case.head_dim)
        pages.append(torch.empty_like(rows))
        pages[-1][order] = rows
    table = order.int().view(case.batch, columns)
    return *pages, table, torch.full((case.batch,), case.seqlen, dtype=torch.int32, device="cuda")


class Calls:
    """Calls of one side. A graph is captured on a stream of its own, so a plan is made for each stream."""

    def __init__(self, library, tensors, others=None, causal=headrace_abi.CAUSAL_NONE, **options):
        self._library, self._tensors, self._others, self._options = library, tensors, others or {}, options
        self._causal = causal
        self._made = {}

    def __call__(self):
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in self._made:
            views = [attention_cuda.headrace_view(t.transpose(1, 2), "bf16") for t in self._tensors]
            self._made[stream] = headrace_abi.Attention(
                self._library, *views, self._causal, self._library.cuda_info(), keeps=self._tensors,
                stream=stream, allocate=attention_cuda.allocate,
                others={name: int32_view(t) for name, t in self._others.items()}, **self._options,
            )  # fmt: skip
        self._made[stream]()

    @property
    def kernel(self):
        return next(iter(self._made.values())).kernel


def run_case(library, case, options, evict):
    q, k, v = random_operands(case)
    k_pages, v_pages, table, used = shuffled_pages(case, k, v, options.page_size)
    out, paged_out = torch.empty_like(q), torch.empty_like(q)
    headrace = Calls(library, (q, k, v, out))
    tables = {"block_table": table, "seqused_k": used}
    paged = Calls(library, (q, k_pages, v_pages, paged_out), tables)
    sdpa, gqa = torch.nn.functional.scaled_dot_product_attention, case.heads != case.kv_heads

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return sdpa(*(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=gqa)

    sides = {"headrace": headrace, "paged": paged, "cudnn": cudnn}
    if options.few_rows:
        sides["whole"] = Calls(library, (q, k_pages, v_pages, torch.empty_like(q)), tables, num_splits=1)
    headrace(), paged()
    difference = (out.float() - cudnn().transpose(1, 2).float()).abs().max().item()
    has_equal_bits = torch.equal(out, paged_out)
    count = CALLS if options.warm else 1
    graphs = {name: graph_of(side, count) for name, side in sides.items()}
    us, times = alternate(graphs, count, options.rounds, None if options.warm else evict)
    return {
        "case": case.name, "group": "one sequence" if case.batch == 1 else "batch", "batch": case.batch,
        "seqlen_k": case.seqlen, "num_heads": case.heads, "num_kv_heads": case.kv_heads, "head_dim": case.head_dim,
        "seqlen_q": case.queries,
        "caches": "warm" if options.warm else "cold", "kernel": headrace.kernel, "page_size": options.page_size,
        "headrace_us": us["headrace"], "paged_us": us["paged"], "cudnn_us": us["cudnn"],
        "whole_us": us.get("whole"),
        "ratio": us["cudnn"] / us["headrace"], "paged_ratio": us["cudnn"] / us["paged"],
        "gbytes": case.bytes() / us["headrace"] * 1e-3, "paged_gbytes": case.bytes() / us["paged"] * 1e-3,
        "difference": difference, "has_equal_bits": has_equal_bits,
        "is_correct": bool(torch.isfinite(out).all()) and difference <= LARGEST_DIFFERENCE and has_equal_bits,
        "rounds_us": times,
    }  # fmt: skip


def make_parser(doc, formats):
    """The options of every benchmark that is built on this file."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--filter", type=re.compile, default="", help="regex on case names")
    parser.add_argument("--rounds", type=int, default=15, help="alternating rounds of each side")
    parser.add_argument("--format", choices=sorted(formats), default="text")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON result to this file")
    parser.add_argument("--library", help="libheadrace.so (HEADRACE_LIBRARY or build/*/src)")
    parser.add_argument("--revision", help="revision of the library, outside a git checkout")
    return parser


def run_cases(benchmark, options, cases, run_one, formats, **meta):
    """run_one(library, case, options, evict) returns a row. Returns the exit status: 1 if a result is wrong, or after a
    message if a call fails."""
    cases = [case for case in cases if re.search(options.filter, case.name)]
    try:
        with torch.no_grad():
            library = headrace_abi.Library(options.library)
            evict = torch.empty(EVICT_BYTES, dtype=torch.uint8, device="cuda")
            rows = []
            for index, case in enumerate(cases):
                progress(f"[{index + 1}/{len(cases)}] {case.name}")
                rows.append(run_one(library, case, options, evict))
            progress("")
    except headrace_abi.Error as error:
        print(f"{benchmark}: {error}", file=sys.stderr)
        return 1
    meta = attention_cuda.meta_of(f"peers/{benchmark}", library.build_info(), options) | meta
    result = {"meta": meta, "rows": rows, "summary": report.summary_of(rows)}
    sys.stdout.write(formats[options.format](result))
    if options.out:
        options.out.write_text(report.as_json(result))
    return 0 if all(row["is_correct"] for row in rows) else 1


def main():
    parser = make_parser(__doc__, FORMATS)
    parser.add_argument("--page-size", type=int, default=16, help="keys of a page")
    parser.add_argument("--few-rows", action="store_true", help="other head dims, several queries")
    parser.add_argument("--warm", action="store_true", help="replays graphs of many calls without a flush of L2")
    options = parser.parse_args()
    cases = FEW_ROWS if options.few_rows else CASES
    mode = "warm" if options.warm else "cold"
    return run_cases("decode_cuda", options, cases, run_case, FORMATS, mode=mode)


if __name__ == "__main__":
    sys.exit(main())
