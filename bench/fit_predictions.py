#!/usr/bin/env python3
"""Fits the constants of the models that predict times (src/attention/predict), and judges them.

    bench/fit_predictions.py --program build/release/cli/headrace   # needs a build with CUDA, no GPU
    bench/fit_predictions.py --check                                # are the source's constants those of the file?

A model is a sum of parts: an amount of work at a ceiling of the device, or a count of microseconds, times a constant.
`headrace explain attention --format json` gives the amounts of a recorded cell. One half of the cells of each grid fits
the constants, by least squares of the relative errors; the other half judges them. Shapes are taken in turns, so that
each half has every head_dim and mask and none is in both. The file keeps the amounts, so that --check needs no program.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
FILE = RESULTS / "predictions.json"
HEADER = ROOT / "src/attention/predict/model_constants.h"
WITHIN = 0.15
GPU_FILES = {
    "cuda_sm90_fwd": ["peers-attention_cuda-h200", "peers-attention_cuda-f16-h200"],
    "cuda_sm90_bwd": ["peers-attention_cuda_backward-h200", "peers-attention_cuda_backward-deterministic-h200"],
    "cuda_sm80_fwd": ["peers-attention_cuda-sm80-h200"],
    "cuda_sm80_fwd f32": ["tiles-cuda_sm80_fwd-h200"],
    "cuda_sm80_bwd": [
        "peers-attention_cuda_backward-sm80-h200", "peers-attention_cuda_backward-sm80-deterministic-h200",
    ],
}  # fmt: skip
# The device of the plan, and the ceilings: a report of headrace roofline, or a benchmark that measured two of them.
CPUS = {
    "zen3": ("cpu:avx2:2", "attention-prefill-zen3"),
    "zen4": ("cpu:avx512_bf16_fast:2", "roofline-grid-zen4"),  # of the same hour
    "xeon": ("cpu:avx512_bf16:2", "attention-prefill-xeon"),
}
CPU_GRID = ("cpu-grid-zen4", "zen4")  # that is fitted
OTHER_CPU_FILES = {
    "peers-attention_cpu-zen3": "zen3", "peers-attention_cpu_backward-zen3": "zen3",
    "peers-attention_cpu-xeon": "xeon",
}  # fmt: skip
CPU_CASE = re.compile(r"(\w+?)_(f32|bf16)_(full|causal)_b(\d+)_h(\d+)(?:kv(\d+))?_s(\d+)_d(\d+)")
# Keys and values that may stay in a cache whose bandwidth was not measured.
CACHED_BYTES = 64e6
FIXED = "launch"  # the part whose constant is not fitted


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def spread(rounds):
    """How much more the second fastest round took than the fastest; None: there are no rounds."""
    return round(sorted(rounds)[1] / min(rounds) - 1, 4) if rounds else None


def options_of(shape):
    names = {
        "batch": "--batch", "seqlen_q": "--seqlen-q", "seqlen_k": "--seqlen-k", "num_heads": "--heads",
        "num_kv_heads": "--kv-heads", "head_dim": "--head-dim", "dtype": "--dtype",
    }  # fmt: skip
    options = [text for key, name in names.items() for text in (name, str(shape[key]))]
    options += ["--causal", "bottom-right"] if shape["causal"] else []
    options += ["--backward"] if shape["backward"] else []
    return options + (["--deterministic"] if shape["deterministic"] else [])


def cell(model, machine, source, case, shape, seconds, rounds=None, is_paged=False):
    return {"model": model, "machine": machine, "source": source, "case": case, "shape": shape,
            "measured_us": round(seconds * 1e6, 3), "spread": spread(rounds), "is_paged": is_paged}  # fmt: skip


def seconds_of(row):
    """A row of the GPU grids: its time, or that of its rate."""
    if "median_us" in row:
        return row["median_us"] * 1e-6
    pairs = row["seqlen_q"] * row["seqlen_k"] * (0.5 if row["causal"] else 1)
    return 4 * row["batch"] * row["num_heads"] * pairs * row["head_dim"] / row["tflops"] * 1e-12


def gpu_cells(model, files):
    for name in files:
        for row in load(name)["rows"]:
            if (row["dtype"] == "f32") != model.endswith(" f32"):
                continue
            keys = ("batch", "seqlen_q", "seqlen_k", "num_heads", "num_kv_heads", "head_dim", "dtype", "causal")
            shape = {key: row[key] for key in keys} | {
                "backward": row["op"] == "bwd", "deterministic": "-deterministic" in name}  # fmt: skip
            yield cell(model, "h200", name, row["case"], shape, seconds_of(row))


def decode_cells():
    name = "peers-decode_cuda-cold-h200"
    for row in load(name)["rows"]:
        shape = {key: row[key] for key in ("batch", "seqlen_k", "num_heads", "num_kv_heads", "head_dim")} | {
            "seqlen_q": 1, "dtype": "bf16", "causal": False, "backward": False, "deterministic": False}  # fmt: skip
        for column, is_paged in (("headrace", False), ("paged", True)):
            case = row["case"] + ("_paged" if is_paged else "")
            yield cell("cuda_sm90_decode", "h200", name, case, shape, row[f"{column}_us"] * 1e-6, None, is_paged)


def cpu_cells(name, machine):
    """A cell's time is that of its fastest round: others that use the machine only add to it."""
    for row in load(name)["rows"]:
        group, dtype, mask, batch, heads, kv_heads, seqlen, dim = CPU_CASE.fullmatch(row["case"]).groups()
        shape = {
            "batch": int(batch), "seqlen_q": 1 if group == "decode" else int(seqlen), "seqlen_k": int(seqlen),
            "num_heads": int(heads), "num_kv_heads": int(kv_heads or heads), "head_dim": int(dim), "dtype": dtype,
            "causal": mask == "causal", "backward": group == "backward", "deterministic": False,
        }  # fmt: skip
        rounds = row["rounds_ms"]["headrace"]
        yield cell(row["kernel"], machine, name, row["case"], shape, min(rounds) * 1e-3, rounds)


def h100_cells():
    """Another chip, never fitted."""
    for row in load("roofline-h100")["calls"]:
        shape = {key: row[key] for key in ("batch", "seqlen_q", "seqlen_k", "num_heads", "num_kv_heads", "head_dim",
                                           "dtype")}  # fmt: skip
        shape |= {"causal": row["causal"] != "none", "backward": row["phase"] == "backward", "deterministic": False}
        model = row["kernel"] + (" f32" if row["dtype"] == "f32" else "")
        yield cell(model, "h100", "roofline-h100", f"call {row['call']}", shape, row["us"] * 1e-6)


def is_left_out(one):
    """Decode from a cache whose bandwidth nothing has measured."""
    shape = one["shape"]
    size = 2 * shape["batch"] * shape["num_kv_heads"] * shape["seqlen_k"] * shape["head_dim"]
    size *= 4 if shape["dtype"] == "f32" else 2
    return one["machine"] in ("zen3", "xeon") and shape["seqlen_q"] == 1 and size < CACHED_BYTES


def all_cells():
    cells = [one for model, files in GPU_FILES.items() for one in gpu_cells(model, files)]
    cells += [*decode_cells(), *cpu_cells(*CPU_GRID)]
    numbers = {}  # of a model's shapes; a shape is in one half, however often it was measured
    for one in cells:
        shape = {key: value for key, value in one["shape"].items() if key != "deterministic"}
        own = numbers.setdefault(one["model"], {})
        i = own.setdefault((one["machine"], *shape.values()), len(own))
        # In turns, beginning with the other half in each pair: grids often alternate two masks.
        one["half"] = "fit" if (i // 2 + i) % 2 == 0 else "held out"
    others = [one for name, machine in OTHER_CPU_FILES.items() for one in cpu_cells(name, machine)]
    return cells + [one | {"half": "other machine"} for one in [*h100_cells(), *others] if not is_left_out(one)]


def write_ceilings(machine, folder):
    """A file for --ceilings."""
    source = load(CPUS[machine][1])
    if "bandwidth" not in source:
        meta = source["meta"]
        source = {
            "compute": [{"resource": meta["f32_fma_isa"], "operation": "f32", "num_units": meta["threads"],
                         "gops": meta["f32_fma_gflops"]}],
            "bandwidth": [{"resource": "DRAM", "operation": "read", "num_units": meta["threads"],
                           "gbytes": meta["read_gbytes"]}],
        }  # fmt: skip
    path = pathlib.Path(folder) / f"{machine}.json"
    path.write_text(json.dumps(source), encoding="utf-8")
    return path


def explained(program, one, folder):
    """Amounts of the parts in microseconds, from the program."""
    device, extra = one["machine"], []
    if device in CPUS:
        extra = ["--ceilings", str(write_ceilings(device, folder))]
        device = CPUS[device][0]
    command = [program, "explain", "attention", "--device", device, "--format", "json", *extra]
    environment = os.environ | {"HEADRACE_KERNEL": one["model"].split()[0]}
    done = subprocess.run([*command, *options_of(one["shape"])], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{one['case']}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if report["plans"][0]["no_prediction"]:
        sys.exit(f"{one['case']}: {report['plans'][0]['no_prediction']}")
    units = {part["part"]: float(f"{part['unit_us']:.6g}") for part in report["parts"]}
    if one["is_paged"]:  # the options of the program have no pages
        units["pages"] = 1.0
    return units


def solve(matrix, values):
    """Gaussian elimination with pivots; an unknown without an equation is 0."""
    n = len(values)
    rows = [list(row) + [value] for row, value in zip(matrix, values)]
    for column in range(n):
        pivot = max(range(column, n), key=lambda i: abs(rows[i][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if abs(rows[column][column]) < 1e-12:
            rows[column] = [float(i == column) for i in range(n)] + [0.0]
        for i in range(n):
            if i != column:
                factor = rows[i][column] / rows[column][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column])]
    return [row[n] / row[i] for i, row in enumerate(rows)]


def fit(cells, names):
    """Constants that are not negative, of least squares of relative errors, to three digits."""
    active = list(names)
    while True:
        rows = [[one["units"][name] / one["measured_us"] for name in active] for one in cells]
        goals = [1 - one["units"].get(FIXED, 0) / one["measured_us"] for one in cells]
        normal = [[sum(row[i] * row[j] for row in rows) for j in range(len(active))] for i in range(len(active))]
        found = solve(normal, [sum(row[i] * goal for row, goal in zip(rows, goals)) for i in range(len(active))])
        if min(found, default=0) >= 0:
            constants = dict(zip(active, found))
            return {name: float(f"{constants.get(name, 0):.3g}") for name in names}
        active.pop(found.index(min(found)))


def judge(cells):
    """Adds predictions to the cells; returns the summary of each model."""
    summary = {}
    for model in dict.fromkeys(one["model"] for one in cells):
        own = [one for one in cells if one["model"] == model]
        names = [name for name in own[0]["units"] if name != FIXED]
        constants = fit([one for one in own if one["half"] == "fit"], names)
        for one in own:
            sum_us = sum(constants.get(name, 1) * unit for name, unit in one["units"].items())
            one["predicted_us"] = round(sum_us, 2)
            one["error"] = round(sum_us / one["measured_us"] - 1, 4)
        summary[model] = {"constants": constants}
        for half in ("fit", "held out", "other machine"):
            errors = [abs(one["error"]) for one in own if one["half"] == half]
            if errors:
                within = sum(error <= WITHIN for error in errors)
                summary[model][half] = {"cells": len(errors), "within": within,
                                        "median_error": round(sorted(errors)[len(errors) // 2], 4)}  # fmt: skip
    return summary


def reason_of(one):
    if one["spread"] is not None and one["spread"] > WITHIN:
        return f"its rounds differ by {100 * one['spread']:.0f} %"
    return "the model"


def print_report(cells, summary):
    for model, found in summary.items():
        held = found["held out"]
        print(f"{model}: {held['within']} of {held['cells']} held-out cells within {100 * WITHIN:.0f} %, "
              f"median error {100 * held['median_error']:.1f} %; {found['constants']}")  # fmt: skip
        for one in cells:
            if one["model"] == model and one["half"] == "held out" and abs(one["error"]) > WITHIN:
                print(f"    {one['machine']} {one['case']}: {one['measured_us']:.0f} us, "
                      f"predicted {100 * one['error']:+.0f} %: {reason_of(one)}")  # fmt: skip
        if "other machine" in found:
            for one in cells:
                if one["model"] == model and one["half"] == "other machine":
                    print(f"    {one['machine']} {one['case']}: {one['measured_us']:.0f} us, "
                          f"predicted {100 * one['error']:+.0f} %")  # fmt: skip


def source_text(summary):
    """The lines of the table in model_constants.h."""
    return "".join(
        f'    {{"{model}", {{{", ".join(f"{value:g}" for value in found["constants"].values())}}}}},\n'
        for model, found in summary.items()
    )


def file_text(summary, cells):
    """JSON, a cell a line."""
    dropped = ("shape", "is_paged")
    rows = [json.dumps({key: value for key, value in one.items() if key not in dropped}) for one in cells]
    return '{"summary": ' + json.dumps(summary, indent=1) + ',\n"rows": [\n' + ",\n".join(rows) + "\n]}\n"


def check_source(recorded, header):
    """What is wrong; None: the constants in the header are those that the recorded cells give."""
    summary = judge(recorded["rows"])
    if summary != recorded["summary"]:
        return f"{FILE.name}: the summary is not that of its rows; run bench/fit_predictions.py"
    table = header.partition("kModelConstants[] = {\n")[2].partition("};")[0]
    if source_text(summary) != table:
        return f"{HEADER.name}: the table is not that of {FILE.name}; it should be\n{source_text(summary)}"
    return None


def self_test(recorded, header):
    """What the check does not see; None: it sees both."""
    if check_source(recorded, header.replace("cuda_sm90_fwd\", {", "cuda_sm90_fwd\", {1", 1)) is None:
        return "another constant in the source is not seen"
    slower = [one | {"measured_us": 2 * one["measured_us"]} for one in recorded["rows"]]
    if check_source(recorded | {"rows": slower}, header) is None:
        return "other measurements are not seen"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="headrace of a build with CUDA")
    parser.add_argument("--check", action="store_true", help="compare the source's constants with the file")
    parser.add_argument("--self-test", action="store_true", help="show that --check can fail")
    arguments = parser.parse_args()
    if arguments.check or arguments.self_test:
        recorded, header = json.loads(FILE.read_text(encoding="utf-8")), HEADER.read_text(encoding="utf-8")
        sys.exit(self_test(recorded, header) if arguments.self_test else check_source(recorded, header))
    if not arguments.program:
        parser.error("--program: pass the headrace of a build with CUDA")
    cells = all_cells()
    with tempfile.TemporaryDirectory() as folder:
        for one in cells:
            one["units"] = explained(arguments.program, one, folder)
    summary = judge(cells)
    if any(not math.isfinite(one["error"]) for one in cells):
        sys.exit("a prediction is not finite")
    print_report(cells, summary)
    FILE.write_text(file_text(summary, cells), encoding="utf-8")
    print(f"\nmodel_constants.h:\n{source_text(summary)}")


if __name__ == "__main__":
    main()
