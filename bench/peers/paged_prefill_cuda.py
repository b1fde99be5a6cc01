#!/usr/bin/env python3
"""Chunks of prompts over shuffled pages, beside the same call over contiguous keys, with and without seqused_k, in one
process. All must have the same bits. Times are of calls in a CUDA graph. Rounds alternate; before each, a stream
through 192 MB flushes the L2."""

import dataclasses
import sys

import decode_cuda
import headrace_abi
import report
import torch
from strict_rows_cuda import Case

PAGE_SIZES = (256, 64, 16)
COLUMNS = (
    ("case", "case", "{}"),
    ("contiguous_us", "contiguous us", "{:.1f}"),
    ("used_us", "seqused_k us", "{:.1f}"),
    *((f"pages_{size}_us", f"pages of {size}", "{:.1f}") for size in PAGE_SIZES),
    ("ratio", "contiguous/pages", "{:.3f}"),
    ("is_correct", "equal bits", "{}"),
    ("kernel", "kernel", "{}"),
)
FORMATS = report.formats(COLUMNS, "contiguous/pages")

CASES = (
    [Case(1, 2048, 10240), Case(8, 512, 4096), Case(1, 2048, 2048), Case(1, 8192, 8192)]
    + [Case(1, 2048, 8192, head_dim=64), Case(1, 2048, 8192, head_dim=96), Case(1, 2048, 8192, 16, 8, 256)]
)


def run_case(library, case, options, evict):
    q, k, v = decode_cuda.random_operands(case)
    used = torch.full((case.batch,), case.seqlen, dtype=torch.int32, device="cuda")
    operands = {"contiguous": (k, v, {}), "used": (k, v, {"seqused_k": used})}
    for size in PAGE_SIZES:
        k_pages, v_pages, table, _ = decode_cuda.shuffled_pages(case, k, v, size)
        operands[f"pages_{size}"] = (k_pages, v_pages, {"block_table": table, "seqused_k": used})
    outs = {name: torch.empty_like(q) for name in operands}
    sides = {
        name: decode_cuda.Calls(
            library, (q, keys, values, outs[name]), others, causal=headrace_abi.CAUSAL_BOTTOM_RIGHT
        )
        for name, (keys, values, others) in operands.items()
    }
    for side in sides.values():
        side()
    torch.cuda.synchronize()
    has_equal_bits = all(torch.equal(outs["contiguous"], out) for out in outs.values())
    graphs = {name: decode_cuda.graph_of(side, 1) for name, side in sides.items()}
    us, times = decode_cuda.alternate(graphs, 1, options.rounds, evict)
    return {
        "case": case.name, "group": f"head_dim {case.head_dim}", **dataclasses.asdict(case),
        **{f"{name}_us": us[name] for name in sides},
        "ratio": us["contiguous"] / us["pages_16"],
        "is_correct": has_equal_bits and bool(torch.isfinite(outs["contiguous"]).all()),
        "kernel": sides["pages_16"].kernel, "rounds_us": times,
    }  # fmt: skip


if __name__ == "__main__":
    options = decode_cuda.make_parser(__doc__, FORMATS).parse_args()
    sys.exit(decode_cuda.run_cases("paged_prefill_cuda", options, CASES, run_case, FORMATS))
