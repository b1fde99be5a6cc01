#!/usr/bin/env python3
"""Headrace compared with cuDNN and FlashAttention-2 through PyTorch on one GPU: one process, the same memory,
alternating rounds. bench/peers/README.md has the protocol."""

import argparse
import dataclasses
import datetime
import json
import math
import pathlib
import platform
import re
import shlex
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import headrace_abi
import report
from energy import Energy
from machine import progress, revision

TOKENS, HIDDEN = 16384, 2048  # batch * seqlen and num_heads * head_dim, as in the FlashAttention papers
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
DTYPES = {"bf16": (torch.bfloat16, headrace_abi.BF16), "f16": (torch.float16, headrace_abi.F16)}
REST_SECONDS = 0.6  # burst: lets the power budget recover
LOAD_SECONDS = 2.0  # loaded: matmuls before the first round; sustained: also length of each round
PRODUCT_SIZE = 8192  # matrix size of the matmul that measures the peak
BATCH_SECONDS = 0.1  # sustained: of calls between two synchronizations
WARM_UPS, LAUNCHES = 5, 30
EVICT_BYTES = 192 << 20  # more than three times the L2 size
LARGEST_DIFFERENCE = {"bf16": 0.02, "f16": 0.003}  # for outputs of magnitude 1; output and P are rounded
COLUMNS = (
    ("case", "case", "{}"),
    ("median_us", "headrace us", "{:.1f}"),
    ("tflops", "TFLOP/s", "{:.0f}"),
    ("cudnn", "cudnn", "{:.0f}"),
    ("fa2", "fa2", "{:.0f}"),
    ("fa3", "fa3, scaled", "{:.0f}"),
    ("pj_per_flop", "pJ/FLOP", "{:.3f}"),
    ("cudnn_pj_per_flop", "cudnn", "{:.3f}"),
    ("ratio", "headrace/best", "{:.3f}"),
    ("is_correct", "correct", "{}"),
    ("kernel", "kernel", "{}"),
)
FORMATS = report.formats(COLUMNS, "headrace/best")


@dataclasses.dataclass(frozen=True)
class Case:
    dtype: str
    head_dim: int
    is_causal: bool
    seqlen: int
    group: int = 1  # query heads per KV head

    @property
    def name(self):
        heads = f"_gqa{self.group}" if self.group > 1 else ""
        return f"{self.dtype}_hd{self.head_dim}_{'causal' if self.is_causal else 'none'}_s{self.seqlen}{heads}"

    @property
    def batch(self):
        return max(TOKENS // self.seqlen, 1)

    @property
    def num_heads(self):
        return HIDDEN // self.head_dim

    def flops(self):
        pairs = self.seqlen * (self.seqlen + 1) / 2 if self.is_causal else self.seqlen**2
        return 4 * self.batch * self.num_heads * self.head_dim * pairs


def all_cases():
    for dtype in DTYPES:
        for head_dim in (64, 128, 256):
            for is_causal in (False, True):
                for seqlen in (512, 2048, 8192, 16384):
                    yield Case(dtype, head_dim, is_causal, seqlen)
        yield Case(dtype, 128, True, 8192, 4)


class Side:
    """One library on the tensors of a case; calls are timed by CUDA events with a flushed L2."""

    def __init__(self, call, flops):
        self.call, self.flops, self.rates = call, flops, []
        self.energies = []  # sustained: joules per FLOP

    def round(self, evict, rest, launches=LAUNCHES):
        time.sleep(rest)
        for _ in range(min(WARM_UPS, launches)):
            self.call()
        marks = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(launches)]
        for begin, end in marks:
            evict.zero_()
            begin.record()
            self.call()
            end.record()
        torch.cuda.synchronize()
        median_ms = statistics.median(begin.elapsed_time(end) for begin, end in marks)
        self.rates.append(self.flops / median_ms * 1e-9)

    def sustained_round(self, energy):
        """Back-to-back calls at the power limit; the L2 is not flushed."""
        started = time.perf_counter()
        self.call()
        torch.cuda.synchronize()
        batch = max(1, int(BATCH_SECONDS / (time.perf_counter() - started)))
        count, joules, started = 0, energy.joules(), time.perf_counter()
        while time.perf_counter() - started < LOAD_SECONDS:
            for _ in range(batch):
                self.call()
            torch.cuda.synchronize()
            count += batch
        flops = count * self.flops
        self.rates.append(flops / (time.perf_counter() - started) * 1e-12)
        self.energies.append((energy.joules() - joules) / flops)

    def rate(self):
        return statistics.median(self.rates)


def headrace_view(tensor, dtype):
    """Views [batch, heads, seqlen, dim] as [batch, seqlen, heads, dim]."""
    view = tensor.transpose(1, 2)
    return headrace_abi.tensor(view.data_ptr(), DTYPES[dtype][1], view.shape, view.stride(), headrace_abi.CUDA)


def make_tensors(case, scale):
    """q, k, v and an out of NaNs: [batch, heads, seqlen, dim]."""
    torch.manual_seed(0)
    heads, kv_heads = case.num_heads, case.num_heads // case.group

    def normal(num_heads):  # BSHD in memory, as in models
        shape = (case.batch, case.seqlen, num_heads, case.head_dim)
        return (torch.randn(shape, device="cuda") * scale).to(DTYPES[case.dtype][0]).transpose(1, 2)

    q, k, v = normal(heads), normal(kv_heads), normal(kv_heads)
    return q, k, v, torch.full_like(q, math.nan)


def causal_of(case):
    return headrace_abi.CAUSAL_BOTTOM_RIGHT if case.is_causal else headrace_abi.CAUSAL_NONE


def allocate(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def make_sides(library, case, peers, scale):
    q, k, v, out = make_tensors(case, scale)
    ours = headrace_abi.Attention(
        library, *(headrace_view(t, case.dtype) for t in (q, k, v, out)), causal_of(case),
        library.cuda_info(), stream=torch.cuda.current_stream().cuda_stream, allocate=allocate,
        keeps=(q, k, v, out),
    )

    def peer(backend):
        sdpa = torch.nn.functional.scaled_dot_product_attention
        gqa = {"enable_gqa": True} if case.group > 1 else {}

        def call():
            with sdpa_kernel(backend):
                return sdpa(q, k, v, is_causal=case.is_causal, **gqa)

        return call

    sides = {"headrace": Side(ours, case.flops())}
    sides.update({name: Side(peer(BACKENDS[name]), case.flops()) for name in peers})
    return sides, ours, out


def run_rounds(sides, options, evict):
    for _ in range(options.rounds):
        for side in sides.values():
            if options.energy:
                side.sustained_round(options.energy)
            else:
                side.round(evict, REST_SECONDS if options.mode == "burst" else 0)


def energies_of(sides):
    """pJ per FLOP, in sustained rounds."""
    medians = {name: statistics.median(side.energies) * 1e12 for name, side in sides.items() if side.energies}
    return {f"{'' if name == 'headrace' else name + '_'}pj_per_flop": value for name, value in medians.items()}


def row_of(case, op, kernel, sides, rates, flops, difference, is_correct):
    best = max((rate for name, rate in rates.items() if name != "headrace"), default=None)
    return {
        "case": case.name, "op": op, "dtype": case.dtype, "head_dim": case.head_dim, "head_dim_v": case.head_dim,
        "batch": case.batch, "seqlen_q": case.seqlen, "seqlen_k": case.seqlen, "num_heads": case.num_heads,
        "num_kv_heads": case.num_heads // case.group, "causal": case.is_causal, "kernel": kernel,
        "median_us": flops / rates["headrace"] * 1e-6, "tflops": rates["headrace"],
        **{name: rate for name, rate in rates.items() if name != "headrace"},
        **energies_of(sides),
        "rounds": {name: side.rates for name, side in sides.items()},
        "ratio": rates["headrace"] / best if best else None, "group": f"hd{case.head_dim}",
        "difference": difference, "is_correct": is_correct,
    }


def known_cells(which):
    """FlashAttention-3's readings by case."""
    return json.loads(pathlib.Path(__file__).with_name("fa3_h200.json").read_text())[which]


def add_fa3(rates, reading, mode):
    """FlashAttention-3's rate, scaled by the ratio of cuDNN's rate here and in the reading."""
    mode = "burst" if mode == "burst" else "loaded"
    if f"fa3_{mode}" in reading and "cudnn" in rates:
        rates["fa3"] = reading[f"fa3_{mode}"] * rates["cudnn"] / reading[f"cudnn_{mode}"]


def run_case(library, case, options, evict, known):
    peers = [name for name in options.peers.split(",") if name]
    sides, ours, out = make_sides(library, case, peers, options.scale)
    ours()
    difference = max(
        [(out.float() - sides[name].call().float()).abs().max().item() for name in peers], default=0.0
    )
    is_correct = bool(torch.isfinite(out).all()) and difference <= LARGEST_DIFFERENCE[case.dtype] * options.scale
    run_rounds(sides, options, evict)
    rates = {name: side.rate() for name, side in sides.items()}
    add_fa3(rates, known.get(case.name, {}), options.mode)
    return row_of(case, "fwd", ours.kernel, sides, rates, case.flops(), difference, is_correct)


def square():
    return torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, device="cuda", dtype=torch.bfloat16)


def load_card():
    a = square()
    end = time.time() + LOAD_SECONDS
    while time.time() < end:
        a @ a
        torch.cuda.synchronize()


def ceiling_of(options, evict):
    """TFLOP/s of a large matmul, timed like the cases: this card's practical peak in this mode."""
    a, b = square(), square()
    side = Side(lambda: a @ b, 2 * PRODUCT_SIZE**3)
    run_rounds({"product": side}, options, evict)
    return side.rate()


def meta_of(benchmark, build_info, options):
    return {
        "benchmark": benchmark,
        "command": shlex.join([f"bench/{benchmark}.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": torch.cuda.get_device_name(),
        "revision": options.revision or revision() or "unknown",
        "build": build_info,
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "python": platform.python_version(),
        "mode": getattr(options, "mode", "burst"),
        "rounds": options.rounds,
    }


def make_parser(description, default_peers):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--filter", type=re.compile, default="^bf16", help="regex on case names")
    parser.add_argument("--peers", default=default_peers, help="comma list of " + ",".join(BACKENDS))
    parser.add_argument("--mode", choices=("burst", "loaded", "sustained"), default="burst")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds of each side")
    parser.add_argument("--scale", type=float, default=1.0, help="standard deviation of q, k and v")
    parser.add_argument("--list", action="store_true", help="print the case names and stop")
    parser.add_argument("--format", choices=sorted(FORMATS), default="text")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON result to this file")
    parser.add_argument("--library", help="libheadrace.so (HEADRACE_LIBRARY or build/*/src)")
    parser.add_argument("--revision", help="revision of the library, outside a git checkout")
    return parser


def run_all(benchmark, options, run_one):
    """run_one(library, case, evict) returns a row. Returns the exit status: 1 if a result is wrong."""
    cases = [case for case in all_cases() if re.search(options.filter, case.name)]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    library = headrace_abi.Library(options.library)
    evict = torch.empty(EVICT_BYTES, dtype=torch.uint8, device="cuda")
    try:
        options.energy = Energy() if options.mode == "sustained" else None
    except (OSError, RuntimeError) as error:
        print(f"{benchmark}: --mode sustained needs NVML's energy counter: {error}", file=sys.stderr)
        return 1
    if options.mode != "burst":
        load_card()
    rows = []
    for index, case in enumerate(cases):
        progress(f"[{index + 1}/{len(cases)}] {case.name}")
        rows.append(run_one(library, case, evict))
    progress("")
    meta = meta_of(f"peers/{benchmark}", library.build_info(), options)
    meta["product_tflops"] = round(ceiling_of(options, evict), 1)
    result = {"meta": meta, "rows": rows, "summary": report.summary_of(rows)}
    sys.stdout.write(FORMATS[options.format](result))
    if options.out:
        options.out.write_text(report.as_json(result))
    return 0 if all(row["is_correct"] for row in rows) else 1


def main():
    options = make_parser(__doc__, default_peers="cudnn").parse_args()
    known = known_cells("cells")
    with torch.no_grad():
        return run_all(
            "attention_cuda", options, lambda library, case, evict: run_case(library, case, options, evict, known)
        )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except headrace_abi.Error as error:
        print(f"attention_cuda: {error}", file=sys.stderr)
        sys.exit(1)
