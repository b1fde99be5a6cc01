#!/usr/bin/env python3
"""The gain of each fast path of the Python package: host time per call with it and without it, on the CPU.

An ablation replaces the source of one function by a version without the fast path. Rounds with and without it
alternate in one process. The clock is the thread's CPU time, which stops while other processes have the core, and the
fastest round counts, because disturbances only add time. "nothing" replaces nothing: its gain is the noise.
"""

import argparse
import contextlib
import dataclasses
import datetime
import inspect
import json
import pathlib
import platform
import shlex
import sys
import textwrap

import torch

import headrace
from headrace import _arrays, _plans  # noqa: F401  (_arrays: its references are replaced too)
from headrace.torch import _backward, _eager, _quick
from host_time import bound, time_round
from machine import cpu_name, revision

import headrace.torch as ht

SHAPE = (1, 1, 1, 8)
MODES = {"none": "forward", "forward": "forward with a graph", "both": "forward and backward"}


@dataclasses.dataclass(frozen=True)
class Edit:
    owner: object  # the module or class of the function
    function: str
    old: str
    new: str


def inlined_run(new):
    return Edit(_eager, "compute", "if block.scratch_token is not scratch.token:", new)


ABLATIONS = {
    "nothing": (),
    "calls looked up before any argument is read": (
        Edit(_quick, "attention", "if _is_compiling()", "if True or _is_compiling()"),
    ),
    "a guard of the latest call": (
        Edit(_quick, "attention", "if known is None or not known[0](q, k, v):", "if True:"),
        Edit(_quick, "_attention_by_key", "if guard is not None:", "if False:"),
    ),
    "entries and plans kept": (
        Edit(_quick, "attention", "if _is_compiling()", "if True or _is_compiling()"),
        Edit(_eager, "prepare", "entry = _plans.get(key)", "entry = None; _plans._kept.clear()"),
    ),
    "out like q": (
        Edit(_eager, "compute", "_empty_like(q) if entry.is_out_like_q else q", "q"),
    ),
    "lse like an expanded element": (
        Edit(
            _quick, "attention", "_empty_like(entry.lse)",
            "torch.empty(entry.lse.shape, dtype=entry.result_dtype, device=entry.device)",
        ),
    ),
    "argument blocks kept": (
        Edit(_eager, "compute", "block = blocks.pop()", "block = entry.plan._first.copy()"),
        Edit(_eager, "compute", "    blocks.append(block)\n", ""),
        Edit(_plans.Plan, "_run", "    self.blocks.append(block)\n", ""),
    ),
    "the CPU's run inlined": (inlined_run("if True:"),),
    "arguments of the CPU packed once": (
        inlined_run("if True:"),
        Edit(_plans.Plan, "run_on_cpu", "if block.scratch_token is scratch.token:", "if False:"),
    ),
    "arguments converted once": (
        Edit(_plans.Block, "__init__", "_pointer(", "int("),
        Edit(_plans.Plan, "__init__", "_pointer(self.handle), _size(self.workspace_bytes)",
             "self.handle, self.workspace_bytes"),
        Edit(_plans.Plan, "__init__", "LIBRARY[run_function]",
             "LIBRARY[run_function]; self.run_function.argtypes = "
             "[ctypes.c_void_p] * (len(structs) + 2) + [ctypes.c_size_t, ctypes.c_void_p]"),
        Edit(_plans.Plan, "_arguments", "_pointer(workspace), self._size_argument, _pointer(stream)",
             "workspace, self._size_argument, stream"),
    ),
    "functions of torch bound to names": (
        Edit(_quick, "attention", "_num_threads()", "torch.get_num_threads()"),
        Edit(_quick, "attention", "_is_grad_enabled()", "torch.is_grad_enabled()"),
        Edit(_quick, "attention", "_is_compiling()", "torch.compiler.is_dynamo_compiling()"),
        Edit(_quick, "attention", "_num_function_modes()", "torch._C._len_torch_function_stack()"),
        Edit(_quick, "attention", "_kept(", "_plans.get("),
        Edit(_eager, "compute", "_empty_like(", "torch.empty_like("),
    ),
    "an autograd node without the operator": (
        Edit(_backward, "_is_direct", "return ", "return False and "),
    ),
}  # fmt: skip


@contextlib.contextmanager
def without(edits):
    """The package with these edits, in every module that refers to a changed function."""
    restored = []
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "headrace"]
    texts = {}
    for edit in edits:
        key = edit.owner, edit.function
        text = texts.get(key) or textwrap.dedent(inspect.getsource(getattr(*key)))
        if edit.old not in text:
            raise LookupError(f"{edit.function} has no '{edit.old}': follow the change of the package")
        texts[key] = text.replace(edit.old, edit.new)
    for (owner, name), text in texts.items():
        old, found = getattr(owner, name), {}
        exec("from __future__ import annotations\n" + text, old.__globals__, found)
        for place in (owner, *modules):
            for attribute, value in list(vars(place).items()):
                if value is old:
                    restored.append((place, attribute, old))
                    setattr(place, attribute, found[name])
    headrace.cache_clear()
    try:
        yield
    finally:
        for place, attribute, old in restored:
            setattr(place, attribute, old)
        headrace.cache_clear()


def measure(grad, edits, arguments):
    """(with, without) of each round, in microseconds."""
    tensors, dout = [torch.randn(SHAPE) for _ in range(3)], torch.randn(SHAPE)
    function = bound(lambda q, k, v: ht.scaled_dot_product_attention(q, k, v), tensors, dout, False, grad)
    calls = arguments.calls // 5 if grad == "both" else arguments.calls
    for i in range(arguments.rounds):
        pair = [0.0, 0.0]
        for is_without in (i % 2, 1 - i % 2):
            with without(edits if is_without else ()):
                time_round(function, max(calls // 10, 10), "cpu")
                pair[is_without] = time_round(function, calls, "cpu")
        yield pair


def rows(arguments):
    for grad, mode in MODES.items():
        for name, edits in ABLATIONS.items():
            if arguments.only not in name:
                continue
            with torch.set_grad_enabled(grad != "none"):
                pairs = list(measure(grad, edits, arguments))
            us, us_without = map(min, zip(*pairs, strict=True))
            yield {
                "call": mode, "fast_path": name, "us": us, "us_without": us_without,
                "gain_percent": 100 * (us_without - us) / us,
            }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=200, help="calls per round")
    parser.add_argument("--only", default="", help="fast paths whose name holds this")
    parser.add_argument("--out", type=pathlib.Path, help="write a report (JSON)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = list(rows(arguments))
    print("| call | fast path | us | us without | gain % |\n|---|---|---:|---:|---:|")
    for row in table:
        print(f"| {row['call']} | {row['fast_path']} | {row['us']:.2f} | {row['us_without']:.2f} "
              f"| {row['gain_percent']:.1f} |")
    if arguments.out:
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv), "machine": cpu_name(), "python": platform.python_version(),
            "torch": torch.__version__, "headrace": headrace.__version__, "revision": revision(), "rows": table,
        }  # fmt: skip
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
