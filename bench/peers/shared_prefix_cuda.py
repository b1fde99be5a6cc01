#!/usr/bin/env python3
"""Decode on the GPU where the sequences of a batch begin with the same keys: private copies of the prefix, the same
pages without and with max_shared_prefix, in one process. Times are of calls in a CUDA graph. Rounds alternate; before
each, a stream through 192 MB flushes the L2."""

import dataclasses
import sys

import report
import torch
from decode_cuda import Calls, alternate, graph_of, make_parser, run_cases

HEAD_DIM = 128
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
    us, times = alternate(graphs, 1, options.rounds, evict)
    return {
        "case": case.name, "group": f"{case.prefix} shared", **dataclasses.asdict(case), "head_dim": HEAD_DIM,
        "kernel": sides["prefix"].kernel, **{f"{name}_us": value for name, value in us.items()},
        "ratio": us["private"] / us["prefix"], "is_correct": all(torch.equal(outs[0], x) for x in outs),
        "rounds_us": times,
    }  # fmt: skip


if __name__ == "__main__":
    options = make_parser(__doc__, FORMATS).parse_args()
    sys.exit(run_cases("shared_prefix_cuda", options, CASES, run_case, FORMATS))
