#!/usr/bin/env python3
"""strict_rows on the GPU beside the default, in one process: decode steps, few queries, and prompts. With strict_rows
the last query must have the same bits alone, over contiguous keys. --page-size: over shuffled pages. Times are of calls
in a CUDA graph. Rounds alternate; before each, a stream through 192 MB flushes the L2."""

import dataclasses
import sys

import decode_cuda
import headrace_abi
import report
import torch

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
    q, k, v = decode_cuda.random_operands(case)
    outs = [torch.empty_like(q), torch.empty_like(q)]
    causal = headrace_abi.CAUSAL_BOTTOM_RIGHT if case.queries > 1 else headrace_abi.CAUSAL_NONE
    operands, tables = (k, v), {}
    if options.page_size:
        *operands, table, used = decode_cuda.shuffled_pages(case, k, v, options.page_size)
        tables = {"block_table": table, "seqused_k": used}
    sides = [
        decode_cuda.Calls(library, (q, *operands, out), tables, causal=causal, strict_rows=is_strict)
        for is_strict, out in enumerate(outs)
    ]
    for side in sides:
        side()
    last = torch.empty_like(q[:, -1:])
    decode_cuda.Calls(library, (q[:, -1:], k, v, last), strict_rows=True)()
    torch.cuda.synchronize()
    has_equal_bits = torch.equal(outs[1][:, -1:], last)
    difference = (outs[0].float() - outs[1].float()).abs().max().item()
    graphs = {name: decode_cuda.graph_of(side, 1) for name, side in zip(("default", "strict"), sides, strict=True)}
    us, times = decode_cuda.alternate(graphs, 1, options.rounds, evict)
    return {
        "case": case.name, "group": "prompts" if case.queries > 16 else "decode", **dataclasses.asdict(case),
        "default_us": us["default"], "strict_us": us["strict"], "ratio": us["default"] / us["strict"],
        "page_size": options.page_size, "difference": difference,
        "has_equal_bits": has_equal_bits,
        "is_correct": bool(torch.isfinite(outs[1]).all()) and difference <= 2e-2 and has_equal_bits,
        "default_kernel": sides[0].kernel, "kernel": sides[1].kernel, "rounds_us": times,
    }  # fmt: skip


if __name__ == "__main__":
    parser = decode_cuda.make_parser(__doc__, FORMATS)
    parser.add_argument("--page-size", type=int, default=0, help="keys of a page; 0: contiguous keys")
    options = parser.parse_args()
    sys.exit(decode_cuda.run_cases("strict_rows_cuda", options, CASES, run_case, FORMATS))
