#!/usr/bin/env python3
"""Host time per call: the functions of headrace.torch next to PyTorch's scaled_dot_product_attention, at shapes whose
compute time is negligible. Rounds in one process, in a different order each time; microseconds, medians.

On the CPU the thread's CPU clock is used, which stops while other processes have the core. On a GPU the wall clock
covers enqueuing the calls of a round, without the synchronization after them.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import shlex
import statistics
import sys
import time

import torch

import headrace
import headrace.torch as ht
from machine import cpu_name, revision

PLAIN = torch.nn.functional.scaled_dot_product_attention
# batch, heads, seqlen, head_dim
SHAPES = {"one row": (1, 1, 1, 8), "tiny": (1, 2, 4, 16), "small": (1, 8, 16, 64)}
COMPUTES = {"small"}  # compute time counts on the CPU: exempt from the limit in microseconds
LIMIT_US = {"none": 15.0, "forward": 25.0, "both": float("inf")}
LIMIT_RATIO = 1.5


def functions(shape, device, dtype, is_causal, grad):
    """name: a call without arguments; PyTorch's is last. All read the same memory, [batch, heads, seqlen, head_dim]."""
    q, k, v, dout = (torch.randn(shape, device=device).to(dtype) for _ in range(4))
    calls = {
        "scaled_dot_product_attention": lambda q, k, v: ht.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        "flash_attn_func": lambda q, k, v: ht.flash_attn_func(q, k, v, causal=is_causal),
        "PyTorch": lambda q, k, v: PLAIN(q, k, v, is_causal=is_causal),
    }
    return {name: bound(call, (q, k, v), dout, name == "flash_attn_func", grad) for name, call in calls.items()}


def bound(call, tensors, dout, is_flat, grad):
    """The call on these tensors; with grad="both" also its backward."""
    *inputs, dout = (x.transpose(1, 2) if is_flat else x for x in (*tensors, dout))
    inputs = [x.detach().requires_grad_(grad != "none") for x in inputs]
    if grad == "both":
        return lambda: torch.autograd.grad(call(*inputs), inputs, dout)
    return lambda: call(*inputs)


def time_round(function, calls, device):
    if device == "cuda":
        torch.cuda.synchronize()
    clock = time.perf_counter if device == "cuda" else time.thread_time
    start = clock()
    for _ in range(calls):
        function()
    took = clock() - start
    if device == "cuda":
        torch.cuda.synchronize()
    return took / calls * 1e6


def measure(calls_of, arguments, device):
    rounds = {name: [] for name in calls_of}
    for name, function in calls_of.items():
        time_round(function, arguments.calls, device)
    order = list(calls_of.items())
    for i in range(arguments.rounds):
        random.Random(i).shuffle(order)
        for name, function in order:
            rounds[name].append(time_round(function, arguments.calls, device))
    return rounds


def rows(arguments, device):
    dtype = torch.float16 if device == "cuda" else torch.float32
    for name, shape in SHAPES.items():
        for is_causal in (False, True):
            rounds = measure(functions(shape, device, dtype, is_causal, arguments.grad), arguments, device)
            theirs = statistics.median(rounds["PyTorch"])
            for function, times in rounds.items():
                if function != "PyTorch":
                    ours = statistics.median(times)
                    yield {
                        "shape": name, "sizes": shape, "causal": is_causal, "function": function, "ours_us": ours,
                        "pytorch_us": theirs, "ratio": ours / theirs, "fastest_us": min(times),
                        "rounds_us": {"ours": times, "pytorch": rounds["PyTorch"]},
                    }  # fmt: skip


def print_table(device, table):
    print(f"| {device}, host time per call | headrace us | PyTorch us | ratio |\n|---|---:|---:|---:|")
    for row in table:
        what = f"{row['function']}, {row['shape']} {list(row['sizes'])}{', causal' if row['causal'] else ''}"
        print(f"| {what} | {row['ours_us']:.1f} | {row['pytorch_us']:.1f} | {row['ratio']:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=500, help="calls per round")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch and headrace, on the CPU")
    parser.add_argument(
        "--grad", choices=list(LIMIT_US), default="none", help="forward: calls that need grad; both: and their backward"
    )
    parser.add_argument("--out", type=pathlib.Path, help="write a report (JSON)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is exceeded")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with torch.set_grad_enabled(arguments.grad != "none"):
        table = list(rows(arguments, arguments.device))
    print_table(arguments.device, table)
    worst = max(row["ours_us"] for row in table if row["shape"] not in COMPUTES)
    ratio = max(row["ratio"] for row in table)
    limit = LIMIT_US[arguments.grad]
    print(f"\nworst except small: {worst:.1f} us (limit {limit}); worst ratio {ratio:.2f} (limit {LIMIT_RATIO})")
    if arguments.out:
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv),
            "machine": torch.cuda.get_device_name() if arguments.device == "cuda" else cpu_name(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "headrace": headrace.__version__,
            "grad": arguments.grad,
            "revision": revision(),
            "rows": table,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    is_broken = worst > limit or ratio > LIMIT_RATIO
    return 1 if arguments.check and is_broken else 0


if __name__ == "__main__":
    sys.exit(main())
