#!/usr/bin/env python3
"""Times the CPU kernels on the forward, backward and decode grids, in rounds over all cells.

    bench/cpu_grid.py --program build/release/cli/headrace --rounds 5 --out bench/results/cpu-grid-zen4.json

A round calls `headrace bench attention` once for each cell, warm, so that the rounds of a cell lie minutes apart: what
else a machine does at one time is in one of them. For the models that predict times (bench/fit_predictions.py).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import cases  # noqa: E402

LONGEST_BACKWARD = 4096  # the next length of the grid takes 20 s a call
DTYPES = {"cpu_avx2": ("f32", "bf16"), "cpu_avx512": ("f32", "bf16"), "cpu_avx512bf16": ("bf16",)}


def backward_cases():
    for dtype in cases.DTYPES:
        for batch, heads, seqlen, dim in cases.PREFILL_SHAPES:
            if seqlen > LONGEST_BACKWARD:
                continue
            for is_causal in (False, True):
                yield cases.Case("backward", dtype, is_causal, batch, heads, heads, seqlen, seqlen, dim)


def cells(families, longest):
    for case in [*cases.all_cases(), *backward_cases()]:
        if case.kind != "decode" and case.seqlen_q > longest:
            continue
        for family in families:
            if case.dtype in DTYPES[family]:
                yield case, family + ("_bwd" if case.kind == "backward" else "_fwd")


def run(program, case, kernel, threads, seconds):
    """The report of one cell: milliseconds, and what ran."""
    command = [program, "bench", "attention", "--format", "json", "--no-ceilings", "--no-tuning", "--reps", "1",
               "--min-time", str(seconds), "--threads", str(threads), "--dtype", case.dtype,
               "--batch", str(case.batch), "--heads", str(case.num_heads), "--kv-heads", str(case.num_kv_heads),
               "--seqlen-q", str(case.seqlen_q), "--seqlen-k", str(case.seqlen_k), "--head-dim", str(case.head_dim),
               "--causal", "bottom-right" if case.is_causal else "none"]  # fmt: skip
    command += ["--backward"] if case.kind == "backward" else []
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HEADRACE_KERNEL": kernel})
    if done.returncode != 0:
        sys.exit(f"{case.name}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    (row,) = report["rows"]
    if row["kernel"] != kernel:
        sys.exit(f"{case.name}: {row['kernel']} ran instead of {kernel}")
    return row["ms_median"], report["meta"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="headrace")
    parser.add_argument("--kernels", default=",".join(DTYPES), help="families of kernels")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-seconds", type=float, default=0.1, help="at least, for each cell")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--longest", type=int, default=1 << 20, help="queries of a prefill or backward pass")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    rows = [(case, kernel, []) for case, kernel in cells(arguments.kernels.split(","), arguments.longest)]
    for i in range(arguments.rounds):
        for done, (case, kernel, rounds) in enumerate(rows):
            print(f"\rround {i + 1} of {arguments.rounds}, cell {done + 1} of {len(rows)} ", end="", file=sys.stderr)
            milliseconds, meta = run(arguments.program, case, kernel, arguments.threads, arguments.round_seconds)
            rounds.append(milliseconds)
        # After every round, so that a run that is cut off leaves those before.
        report = {
            "meta": meta | {"benchmark": "cpu_grid", "command": " ".join(sys.argv), "rounds": i + 1},
            "rows": [{"case": case.name, "group": case.group, "kernel": kernel, "caches": "warm",
                      "headrace_ms": statistics.median(rounds), "rounds_ms": {"headrace": rounds}}
                     for case, kernel, rounds in rows],
        }  # fmt: skip
        pathlib.Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
