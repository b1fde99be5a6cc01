#!/usr/bin/env python3
"""Headrace compared with PyTorch's scaled_dot_product_attention on the CPU: one process, the same memory,
the same threads, alternating rounds. bench/peers/README.md has the protocol."""

import argparse
import concurrent.futures
import datetime
import math
import os
import pathlib
import platform
import re
import shlex
import statistics
import sys
import time

import numpy
import torch

import headrace_abi
import report
from cases import all_cases
from machine import cpu_name, progress, revision

TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ABI_DTYPES = {"f32": headrace_abi.F32, "bf16": headrace_abi.BF16}
# Relative rounding error of a result.
EPSILON = {"f32": 2.0**-20, "bf16": 2.0**-8}
ROWS_TO_CHECK = 96  # for long sequences: the first and last rows and some in between
SETTLE_SECONDS = 0.02  # lets the threads of the other side stop spinning
MAX_CALLS_IN_ROUND = 100000
MIN_COLD_CALLS = 5


class Evictor:
    """Streams over memory larger than the last level cache, on every computing core. Uses numpy in
    threads that sleep afterwards: a pool that keeps spinning would slow down the next call.
    """

    def __init__(self, num_threads):
        words = 2 * max(last_level_cache_bytes(), 32 << 20) // num_threads // 8
        self._parts = [numpy.ones(words, dtype=numpy.int64) for _ in range(num_threads)]
        self._pool = concurrent.futures.ThreadPoolExecutor(num_threads)

    def __call__(self):
        list(self._pool.map(numpy.add.reduce, self._parts))


def last_level_cache_bytes():
    for level in (3, 2):
        path = pathlib.Path(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size")
        match = re.match(r"(\d+)K", path.read_text()) if path.exists() else None
        if match:
            return int(match[1]) * 1024
    return 32 << 20


class Inputs:
    """Tensors of a case in PyTorch's order (batch, heads, seqlen, head_dim)."""

    def __init__(self, case, seed=0):
        generator = torch.Generator().manual_seed(seed)
        dtype = TORCH_DTYPES[case.dtype]

        def normal(heads, seqlen):
            shape = (case.batch, heads, seqlen, case.head_dim)
            return torch.randn(shape, generator=generator).to(dtype)

        self.q = normal(case.num_heads, case.seqlen_q)
        self.k = normal(case.num_kv_heads, case.seqlen_k)
        self.v = normal(case.num_kv_heads, case.seqlen_k)
        self.out = torch.full_like(self.q, math.nan)


def headrace_view(tensor, dtype):
    """The same memory viewed as batch, seqlen, heads, head_dim."""
    batch, heads, seqlen, dim = tensor.shape
    stride_batch, stride_head, stride_seq, stride_dim = tensor.stride()
    return headrace_abi.tensor(
        tensor.data_ptr(),
        ABI_DTYPES[dtype],
        (batch, seqlen, heads, dim),
        (stride_batch, stride_seq, stride_head, stride_dim),
    )


def make_headrace(library, case, inputs, num_threads):
    views = [headrace_view(t, case.dtype) for t in (inputs.q, inputs.k, inputs.v, inputs.out)]
    causal = headrace_abi.CAUSAL_BOTTOM_RIGHT if case.is_causal else headrace_abi.CAUSAL_NONE
    return headrace_abi.Attention(library, *views, causal, library.cpu_info(num_threads))


def available_memory_bytes():
    match = re.search(r"MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return int(match[1]) * 1024 if match else 1 << 62


def make_torch(case, inputs):
    """Name -> call. For GQA both enable_gqa and expanded KV heads; the expansion is not timed."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v, is_causal = inputs.q, inputs.k, inputs.v, case.is_causal
    if case.num_heads == case.num_kv_heads:
        return {"plain": lambda: sdpa(q, k, v, is_causal=is_causal)}
    calls = {"enable_gqa": lambda: sdpa(q, k, v, is_causal=is_causal, enable_gqa=True)}
    group_size = case.num_heads // case.num_kv_heads
    expanded_bytes = 2 * k.numel() * k.element_size() * group_size
    if expanded_bytes < available_memory_bytes() // 2:
        k_all = k.repeat_interleave(group_size, dim=1)
        v_all = v.repeat_interleave(group_size, dim=1)
        calls["expanded"] = lambda: sdpa(q, k_all, v_all, is_causal=is_causal)
    else:
        note(f"{case.name}: not enough memory for torch with expanded KV heads, skipped")
    return calls


def rows_to_check(case):
    if case.seqlen_q <= ROWS_TO_CHECK * 4:
        return list(range(case.seqlen_q))
    third = ROWS_TO_CHECK // 3
    middle = [case.seqlen_q * (i + 1) // (third + 1) for i in range(third)]
    return [*range(third), *middle, *range(case.seqlen_q - third, case.seqlen_q)]


def reference_rows(case, inputs, rows):
    """softmax(q k^T / sqrt(d)) v in float64 for selected query rows: [batch, heads, rows, head_dim]."""
    group_size = case.num_heads // case.num_kv_heads
    out = torch.empty(
        (case.batch, case.num_heads, len(rows), case.head_dim), dtype=torch.float64
    )
    hidden = None
    if case.is_causal:
        last_key = torch.tensor(rows) + case.seqlen_k - case.seqlen_q
        hidden = torch.arange(case.seqlen_k)[None, :] > last_key[:, None]
    for b in range(case.batch):
        for h in range(case.num_heads):
            k = inputs.k[b, h // group_size].double()
            v = inputs.v[b, h // group_size].double()
            scores = inputs.q[b, h, rows].double() @ k.T / math.sqrt(case.head_dim)
            if hidden is not None:
                scores.masked_fill_(hidden, -math.inf)
            out[b, h] = torch.softmax(scores, dim=-1) @ v
    return out


def check_case(case, inputs, headrace, torch_calls):
    """Errors against float64. Ours must be at most twice torch's plus one rounding of the result."""
    rows = rows_to_check(case)
    expected = reference_rows(case, inputs, rows)
    inputs.out.fill_(math.nan)
    headrace()
    error = (inputs.out[:, :, rows].double() - expected).abs().max().item()
    torch_error = max(
        (call()[:, :, rows].double() - expected).abs().max().item() for call in torch_calls.values()
    )
    bound = 2 * torch_error + EPSILON[case.dtype] * expected.abs().max().item()
    return {
        "headrace_error": error,
        "torch_error": torch_error,
        "is_correct": error <= bound and not bool(torch.isnan(inputs.out).any()),
    }


def time_round(call, seconds, evict):
    """Median of a round's calls in ms; each call is timed separately."""
    time.sleep(SETTLE_SECONDS)
    call()  # wakes up this side's threads
    times = []
    begin = time.perf_counter()
    min_calls = MIN_COLD_CALLS if evict else 1
    while len(times) < MAX_CALLS_IN_ROUND:
        if evict:
            evict()
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        times.append(end - start)
        if end - begin >= seconds and len(times) >= min_calls:
            break
    return statistics.median(times) * 1e3


def time_case(case, headrace, torch_calls, options, evict):
    sides = {"headrace": headrace, **torch_calls}
    rounds = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, call in sides.items():
            rounds[name].append(time_round(call, options.round_seconds, evict))
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    best = min(torch_calls, key=lambda name: medians[name])
    ours = medians["headrace"]
    return {
        "headrace_ms": ours,
        "torch_ms": medians[best],
        "torch_variant": best,
        "ratio": medians[best] / ours,
        "headrace_gflops": case.flops() / ours * 1e-6,
        "headrace_gbytes": case.bytes() / ours * 1e-6,
        "rounds_ms": rounds,
    }


@torch.no_grad()
def run_case(library, case, options, evictor):
    inputs = Inputs(case)
    headrace = make_headrace(library, case, inputs, options.threads)
    torch_calls = make_torch(case, inputs)
    row = {"case": case.name, "group": case.group, "kernel": headrace.kernel}
    row.update(check_case(case, inputs, headrace, torch_calls))
    if not options.check:
        evict = evictor if case.kind == "decode" else None
        row["caches"] = "cold" if evict else "warm"
        row.update(time_case(case, headrace, torch_calls, options, evict))
    return row


def meta_of(library, options):
    name = pathlib.Path(sys.argv[0]).stem
    return {
        "benchmark": f"peers/{name}",
        "command": shlex.join([f"bench/peers/{name}.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": f"{cpu_name()}, {os.cpu_count()} CPUs",
        "operating_system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "revision": revision() or "unknown",
        "build": library.build_info(),
        "torch": f"{torch.__version__} ({torch.backends.cpu.get_cpu_capability()})",
        "python": platform.python_version(),
        "threads": options.threads,
        "rounds": options.rounds,
        "round_seconds": options.round_seconds,
    }


def note(text):
    print(f"{pathlib.Path(sys.argv[0]).stem}: {text}", file=sys.stderr)


def parse_options(description):
    def positive(text):
        value = int(text)
        if value < 1:
            raise argparse.ArgumentTypeError("must be 1 or more")
        return value

    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--threads", type=positive, default=2, help="threads of both sides")
    parser.add_argument("--rounds", type=positive, default=5, help="alternating rounds of each side")
    parser.add_argument("--round-seconds", type=float, default=0.2, help="minimum time of a round")
    parser.add_argument("--cold", action="store_true", help="decode: evict caches before each call")
    parser.add_argument("--filter", type=re.compile, default="", help="regex on case names")
    parser.add_argument("--list", action="store_true", help="print the case names and stop")
    parser.add_argument(
        "--check", action="store_true", help="no timing: check the cases and smaller versions of them"
    )
    parser.add_argument("--format", choices=sorted(report.FORMATS), default="text")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON result to this file")
    parser.add_argument("--library", help="libheadrace.so (HEADRACE_LIBRARY or build/*/src)")
    return parser.parse_args()


def run_cases(library, cases, options, run):
    evictor = Evictor(options.threads) if options.cold else None
    rows = []
    for index, case in enumerate(cases):
        progress(f"[{index + 1}/{len(cases)}] {case.name}")
        rows.append(run(library, case, options, evictor))
        if not rows[-1]["is_correct"]:
            note(f"{case.name}: wrong, error {rows[-1]['headrace_error']:.3e}")
    progress("")
    return rows


def main(description=__doc__, cases=None, run=run_case):
    options = parse_options(description)
    cases = [case for case in cases or all_cases() if re.search(options.filter, case.name)]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not cases:
        note("no case matches --filter; --list prints the names")
        return 2
    if options.check:
        cases = list(dict.fromkeys([case.smaller() for case in cases] + cases))
    torch.set_num_threads(options.threads)
    library = headrace_abi.Library(options.library)
    rows = run_cases(library, cases, options, run)
    result = {"meta": meta_of(library, options), "rows": rows, "summary": report.summary_of(rows)}
    sys.stdout.write(report.FORMATS[options.format](result))
    if options.format == "csv":  # CSV has no metadata
        for key, value in result["meta"].items():
            print(f"{key}: {value}", file=sys.stderr)
    if options.out:
        options.out.write_text(report.as_json(result))
    return 0 if all(row["is_correct"] for row in rows) else 1


def exit_with(run_main):
    try:
        sys.exit(run_main())
    except headrace_abi.Error as error:
        note(str(error))
        sys.exit(1)


if __name__ == "__main__":
    exit_with(main)
