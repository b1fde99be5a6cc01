#!/usr/bin/env python3
"""Training step of a GPT with 1.3 billion parameters for several attention implementations in one process, in
alternating rounds: 24 layers, hidden size 2048, 16 heads, vocabulary 50304, two sequences of 8192 or 2048 tokens, bf16
autocast, torch.compile (of a block and of the loss), fused AdamW. The network is that of examples/train_gpt.py.

    PYTHONPATH=python python bench/train_step.py --out bench/results/NAME.json
    PYTHONPATH=python python bench/train_step.py --small                # a tiny model, also on a CPU

The implementations train the same model in turns of a few steps: weights differ between rounds, the work does not. The
first step of a turn is not timed, because the previous implementation determines the card's temperature. FLOP are
counted as in the FlashAttention-2 paper: 6 * parameters * tokens + 12 * layers * hidden * seqlen * tokens. After the
rounds one more step of each is profiled; the table lists the attention kernels that took the most time.
"""

import argparse
import datetime
import json
import pathlib
import shlex
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench/peers"), str(ROOT / "examples")]

import headrace  # noqa: E402
from machine import cpu_name, progress, revision  # noqa: E402
from train_gpt import ATTENTIONS, GPT, Sizes  # noqa: E402

LARGE = {"vocab": 50304, "layers": 24, "hidden": 2048, "heads": 16}
SMALL = {"vocab": 256, "layers": 2, "hidden": 64, "heads": 4}
STEPS = 3  # timed steps per turn
OF_ATTENTION = ("headrace", "attention", "attn", "flash", "fmha", "cudnn", "sdpa", "bmm")


class Step:
    """Training steps of one model with any attention implementation."""

    def __init__(self, sizes, batch, device, compiled):
        torch.manual_seed(0)
        self.sizes, self.batch, self.device = sizes, batch, device
        with torch.device(device):  # initializes on the device, which is fast on a GPU
            self.model = GPT(sizes)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        if compiled:
            self.model.compile_parts()
        self.tokens, self.targets = torch.randint(sizes.vocab, (2, batch, sizes.seqlen), device=device)

    def flop(self):
        tokens = self.batch * self.sizes.seqlen
        return 6 * self.parameters * tokens + 12 * self.sizes.layers * self.sizes.hidden * self.sizes.seqlen * tokens

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def run(self, attention):
        """One step."""
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model(self.tokens, self.targets, ATTENTIONS[attention])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.wait()

    def seconds(self, attention):
        self.wait()
        start = time.perf_counter()
        self.run(attention)
        return time.perf_counter() - start

    def kernels(self, attention):
        """(name, ms) of the attention kernels, the longest first."""
        on_gpu = self.device == "cuda"
        activity = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[activity]) as profile:
            self.run(attention)
        times = [
            (event.key, (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e3)
            for event in profile.key_averages()
            if any(word in event.key.lower() for word in OF_ATTENTION)
        ]
        return sorted((x for x in times if x[1] > 0), key=lambda x: -x[1])[:4]


def rows_of(step, attentions, rounds):
    """One row per attention; if it cannot run here, the row has the error."""
    seconds, errors = {}, {}
    for name in attentions:
        progress(f"{name}, seqlen {step.sizes.seqlen}: first steps")
        try:
            for _ in range(3):
                step.run(name)
            seconds[name] = []
        except (RuntimeError, NotImplementedError) as error:  # also out of memory
            errors[name] = " ".join(str(error).split())
            step.optimizer.zero_grad(set_to_none=True)
    for i in range(rounds):
        for name in seconds:
            progress(f"{name}, seqlen {step.sizes.seqlen}: round {i + 1} of {rounds}")
            step.run(name)
            seconds[name] += [step.seconds(name) for _ in range(STEPS)]
    progress("")
    for name in attentions:
        row = {"attention": name, "seqlen": step.sizes.seqlen, "batch": step.batch, "parameters": step.parameters}
        if name in errors:
            yield {**row, "error": errors[name]}
            continue
        median = statistics.median(seconds[name])
        yield {
            **row, "ms": 1e3 * median, "tflops": step.flop() / median / 1e12,
            "rounds_ms": [1e3 * s for s in seconds[name]], "kernels": step.kernels(name),
        }  # fmt: skip


def table_of(rows):
    lines = ["| seqlen | attention | ms per step | TFLOP/s | attention kernels, ms |", "|---:|---|---:|---:|---|"]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['seqlen']} | {row['attention']} | | | {row['error']} |")
            continue
        kernels = ", ".join(f"{name[:60]} {ms:.2f}" for name, ms in row["kernels"])
        lines.append(f"| {row['seqlen']} | {row['attention']} | {row['ms']:.1f} | {row['tflops']:.4g} | {kernels} |")
    return "\n".join(lines)


def main(argv=None):
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", default="headrace,flash,cudnn" if has_gpu else "headrace,flash,eager")
    parser.add_argument("--seqlen", help="comma list; default 8192,2048, with --small 64,32")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help="turns of each attention")
    parser.add_argument("--small", action="store_true", help="2 layers of 64, vocabulary 256")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if has_gpu else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=has_gpu)
    parser.add_argument("--out", type=pathlib.Path, help="write a report (JSON)")
    a = parser.parse_args(argv)
    attentions = a.attention.split(",")
    for name in attentions:
        if name not in ATTENTIONS:
            parser.error(f"--attention {name}: must be one of {', '.join(ATTENTIONS)}")
    numbers = SMALL if a.small else LARGE
    rows = []
    for seqlen in map(int, (a.seqlen or ("64,32" if a.small else "8192,2048")).split(",")):
        step = Step(Sizes(seqlen=seqlen, **numbers), a.batch, a.device, a.compile)
        rows += rows_of(step, attentions, a.rounds)
    print(table_of(rows))
    if a.out:
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv),
            "machine": torch.cuda.get_device_name() if a.device == "cuda" else cpu_name(),
            "torch": torch.__version__,
            "headrace": headrace.__version__,
            "revision": revision(),
            "is_compiled": a.compile,
            **numbers,
            "rows": rows,
        }
        a.out.write_text(json.dumps(report, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
