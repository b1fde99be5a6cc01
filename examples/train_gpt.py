#!/usr/bin/env python3
"""Trains a small byte-level GPT on a text, with one or several attention implementations, on the CPU or a GPU.

    python examples/train_gpt.py                                     # 200 steps with headrace
    python examples/train_gpt.py --attention headrace,eager,flash    # the same batches: loss curves, step times
    python examples/train_gpt.py --attention headrace,eager --seeds 0,1
    python examples/train_gpt.py --resume --steps 400                # continues the last run

Needs PyTorch and the headrace package; plots the curves if matplotlib is installed. The default text is the tests'
chapter of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865, public domain; source: tests/golden/README.md). A
step's batch depends only on the seed and the step, and a checkpoint has everything else, so a resumed run has the same
losses as an uninterrupted one, on the CPU bit for bit.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import shlex
import statistics
import sys
import time
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import headrace
import headrace.torch

TEXT = pathlib.Path(__file__).parent.parent / "tests/golden/text/alice.txt"

# ---- causal attention: qkv [batch, seqlen, 3, heads, head_dim] -> [batch, seqlen, heads, head_dim] ----


def of_parts(attend):
    """Wraps `attend(q, k, v)`, [batch, heads, seqlen, head_dim] each: PyTorch's functions take no packed qkv."""
    return lambda qkv: attend(*(t.transpose(1, 2) for t in qkv.unbind(2))).transpose(1, 2)


def eager(q, k, v):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1).to(v.dtype) @ v


def of_pytorch(backend):
    def attend(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return of_parts(attend)


ATTENTIONS = {
    "headrace": lambda qkv: headrace.torch.flash_attn_qkvpacked_func(qkv, causal=True),
    "flash": of_pytorch(SDPBackend.FLASH_ATTENTION),
    "cudnn": of_pytorch(SDPBackend.CUDNN_ATTENTION),  # GPU only, 16-bit dtypes
    "eager": of_parts(eager),
}

# ---- the model ----


class Sizes(NamedTuple):
    vocab: int
    layers: int
    hidden: int
    heads: int
    seqlen: int


class Block(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.heads = sizes.heads
        self.norm1, self.norm2 = nn.LayerNorm(sizes.hidden), nn.LayerNorm(sizes.hidden)
        self.qkv, self.out = nn.Linear(sizes.hidden, 3 * sizes.hidden), nn.Linear(sizes.hidden, sizes.hidden)
        self.up, self.down = nn.Linear(sizes.hidden, 4 * sizes.hidden), nn.Linear(4 * sizes.hidden, sizes.hidden)

    def forward(self, x, attend):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        x = x + self.out(attend(qkv).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """GPT-2's architecture: learned positions, pre-norm, tied embeddings."""

    def __init__(self, sizes):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(sizes.vocab, sizes.hidden), nn.Embedding(sizes.seqlen, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                is_residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * sizes.layers) ** 0.5 if is_residual else 0.02)

    def forward(self, tokens, targets, attend):
        """The mean loss; tokens and targets are [batch, seqlen]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, attend)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def compile_parts(self):
        """Compiles one block for all layers, which takes seconds; compiling the whole model takes minutes."""
        for block in self.blocks:
            block.compile(dynamic=False)
        self.loss = torch.compile(self.loss, dynamic=False)


# ---- training ----


class Run:
    """One training run: the state of a checkpoint, and its steps."""

    def __init__(self, text, sizes, attention, seed, batch=8, rate=1e-3, device="cpu", compiled=False):
        torch.manual_seed(seed)
        self.text, self.seed, self.batch, self.rate, self.device = text, seed, batch, rate, device
        self.name, self.attend, self.seqlen = f"{attention}-{seed}", ATTENTIONS[attention], sizes.seqlen
        self.settings = {**sizes._asdict(), "attention": attention, "seed": seed, "batch": batch, "rate": rate}
        self.model = GPT(sizes).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
        if compiled:
            self.model.compile_parts()
        self.losses, self.ms = [], []

    def examples(self):
        """Tokens and targets, [batch, seqlen], of the next step."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + len(self.losses))
        starts = torch.randint(len(self.text) - self.seqlen, (self.batch,), generator=generator)
        rows = self.text[starts[:, None] + torch.arange(self.seqlen + 1)].long().to(self.device)
        return rows[:, :-1], rows[:, 1:]

    def step(self):
        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, (len(self.losses) + 1) / 20)
        low = torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else contextlib.nullcontext()
        with low:
            loss = self.model(*self.examples(), self.attend)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())  # synchronizes
        self.ms.append(1e3 * (time.perf_counter() - start))

    def save(self, folder):
        state = {"settings": self.settings, "losses": self.losses, "ms": self.ms}
        state |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / "half-written")
        os.replace(folder / "half-written", folder / f"{self.name}.pt")  # atomic replacement

    def load(self, folder):
        path = folder / f"{self.name}.pt"
        if not path.exists():
            sys.exit(f"--resume: {path} does not exist; train without --resume first, or pass its folder with --out")
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["settings"] != self.settings:
            sys.exit(f"--resume: {path} was trained with {state['settings']}; pass the same settings")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses, self.ms = state["losses"], state["ms"]

    def final_loss(self):
        """The mean of the last 20 losses; single batches are noisy."""
        return statistics.fmean(self.losses[-20:])


def train(run, steps, every, folder=None):
    while len(run.losses) < steps:
        run.step()
        done = len(run.losses)
        if done % every == 0 or done == steps:
            ms = statistics.median(run.ms[-every:])
            print(f"{run.name:>12}  step {done:5}  loss {run.losses[-1]:.4f}  {ms:.1f} ms per step", flush=True)
            if folder is not None:
                run.save(folder)


def draw(runs, path):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("matplotlib is not installed: no plot; report.json next to the checkpoints has the curves")
        return
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for run in runs:
        axes.plot(range(1, len(run.losses) + 1), run.losses, label=run.name, linewidth=1)
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title="train_gpt.py")
    axes.legend()
    figure.savefig(path)
    print(path)


def report_of(runs, refused, device):
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "machine": next(d.description for d in headrace.devices() if d.name.startswith(device)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "headrace": headrace.__version__,
        "rows": [
            {
                **run.settings, "steps": len(run.losses), "final_loss": run.final_loss(),
                "ms_median": statistics.median(run.ms), "losses": [round(x, 6) for x in run.losses],
            }
            for run in runs
        ],
        "refused": refused,
    }  # fmt: skip


def arguments_of(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", default="headrace", help=f"comma list of {','.join(ATTENTIONS)}")
    parser.add_argument("--seeds", default="0", help="comma list of seeds for weights and batches")
    parser.add_argument("--text", type=pathlib.Path, default=TEXT, help="training text; its bytes are the tokens")
    parser.add_argument("--steps", type=int, default=200, help="total number of steps, including those before --resume")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seqlen", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate after 20 warm-up steps")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="CPU threads; default: PyTorch's")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--every", type=int, default=20, help="steps between log lines and checkpoints")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/train_gpt"), help="output folder")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoints in --out")
    arguments = parser.parse_args(argv)
    arguments.attention = arguments.attention.split(",")
    for name in arguments.attention:
        if name not in ATTENTIONS:
            parser.error(f"--attention {name}: must be one of {', '.join(ATTENTIONS)}")
    return arguments


def main(argv=None):
    a = arguments_of(argv)
    if a.threads:
        torch.set_num_threads(a.threads)
    text = torch.frombuffer(bytearray(a.text.read_bytes()), dtype=torch.uint8)
    if len(text) <= a.seqlen:
        sys.exit(f"--text: {a.text} has {len(text)} bytes: must be longer than --seqlen {a.seqlen}; pass a longer text")
    a.out.mkdir(parents=True, exist_ok=True)
    sizes = Sizes(256, a.layers, a.hidden, a.heads, a.seqlen)
    runs, refused = [], {}
    for attention, seed in itertools.product(a.attention, map(int, a.seeds.split(","))):
        run = Run(text, sizes, attention, seed, a.batch, a.rate, a.device, a.compile)
        if a.resume:
            run.load(a.out)
        try:
            train(run, a.steps, a.every, a.out)
            runs.append(run)
        except (RuntimeError, NotImplementedError) as error:
            if run.losses or len(a.attention) == 1:
                raise
            refused[run.name] = " ".join(str(error).split())
            print(f"{run.name:>12}  cannot run here: {refused[run.name]}", flush=True)
    print("\n| run | loss, mean of the last 20 | ms per step, median |\n|---|---:|---:|")
    for run in runs:
        print(f"| {run.name} | {run.final_loss():.4f} | {statistics.median(run.ms):.1f} |")
    (a.out / "report.json").write_text(json.dumps(report_of(runs, refused, a.device), indent=1) + "\n")
    draw(runs, a.out / "losses.svg")
    return runs


if __name__ == "__main__":
    main()
