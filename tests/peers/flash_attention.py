#!/usr/bin/env python3
"""Runs the test files of FlashAttention-2 and FlashAttention-3 against the package: their tests, their references, our
functions.

    python tests/peers/flash_attention.py --checkout DIR --suite fa2                          # on a GPU, every case
    python tests/peers/flash_attention.py --checkout DIR --suite fa3 --sample 200 --seed 1    # 200 cases of each test
    python tests/peers/flash_attention.py --checkout DIR --suite fa3 --device cpu --sample 8 --max-seqlen 512

DIR is a checkout of Dao-AILab/flash-attention, of which nothing is built or installed. The grids have hundreds of
thousands of cases: --sample draws from them so that every value of every parameter appears equally often. --device cpu
replaces the device in a copy of the test file, and finds missing interfaces without a GPU.

Exit codes: 0 every case passed or was skipped by the peer itself, 1 something failed or is missing, 2 usage.
"""

import argparse
import collections
import contextlib
import itertools
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time

import pytest
import torch

import flash_attention_shims as shims

FILES = {"fa2": "tests/test_flash_attn.py", "fa3": "hopper/test_flash_attn.py"}
# Tests of the peer's own C++ extension, which no other package can have.
LEFT_OUT = {
    "test_flash_attn_generator_arg_must_be_none": "calls the raw entry points of flash_attn_2_cuda",
    "test_flash_attn_varlen_paged_kv_num_splits": "calls a private function, and wants num_splits=2 refused",
    "test_flash3_bw_compatibility": "compares schemas of torch.ops.flash_attn_3",
}
# 1000 repetitions, and 70 GiB of memory to be allocated: a GPU's.
LEFT_OUT_ON_CPU = {
    "test_flash_attn_race_condition": "looks for races of a GPU",
    "test_flash_attn_cluster": "repeats one large call 100 times, for a bug of clusters",
}
MISSING = (NotImplementedError, TypeError, ImportError, AttributeError)


def grid_of(function):
    """The parameters of a test's marks: lists of (names, values)."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name != "parametrize":
            raise SystemExit(f"flash_attention.py: {function.__name__} has the mark {mark.name}, not supported here")
        names, values = mark.args[:2]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        axes.append((names, [v if len(names) > 1 else (v,) for v in values]))
    return axes


def cases_of(axes, limit, rng):
    """Cases of the grid: all of them, or a sample in which the values of each axis appear equally often."""
    sizes = [len(values) for _, values in axes]
    total = 1
    for size in sizes:
        total *= size
    if limit is None or limit >= total:
        yield from itertools.product(*(values for _, values in axes))
        return
    decks = [[] for _ in sizes]
    seen = set()
    while len(seen) < limit:
        drawn = []
        for deck, size in zip(decks, sizes):
            if not deck:
                deck.extend(rng.sample(range(size), size))
            drawn.append(deck.pop())
        if tuple(drawn) not in seen:
            seen.add(tuple(drawn))
            yield tuple(values[i] for i, (_, values) in zip(drawn, axes))


def is_small(names, case, max_seqlen):
    lengths = [v for n, v in zip(names, case) if n.startswith("seqlen") and isinstance(v, int)]
    return max_seqlen is None or all(length <= max_seqlen for length in lengths)


def spelled(names, case):
    return "-".join(f"{n}:{str(v).replace('torch.', '')}" for n, v in zip(names, case))  # as -k reads names


class Suite:
    """A pytest plugin: draws the sample and counts what came of each case."""

    def __init__(self, args, left_out):
        self.args, self.left_out = args, left_out
        self.results = collections.defaultdict(collections.Counter)  # of a test
        self.grid = {}  # cases in the peer's grid, of a test
        self.reasons = collections.Counter()  # of the peer's skips
        self.missing = collections.Counter()  # the messages of refusals
        self.failures = []
        self.errors = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector, name, obj):
        if not name.startswith("test_") or not callable(obj):
            return None
        if name in self.left_out:
            return []
        shims.adapt(collector.obj)
        axes = grid_of(obj)
        names = [n for axis, _ in axes for n in axis]
        total = 1
        for i, (axis, values) in enumerate(axes):
            total *= len(values)
            axes[i] = (axis, [v for v in values if is_small(axis, v, self.args.max_seqlen)])
        self.grid[name] = total
        if not axes:
            return None
        rng = random.Random(f"{self.args.seed} {name}")  # a sample of one test does not depend on the others
        cases = [tuple(itertools.chain(*case)) for case in cases_of(axes, self.args.sample, rng)]
        obj.pytestmark = [
            pytest.mark.parametrize(names, cases, ids=[spelled(names, case) for case in cases]).mark
        ]
        return None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        report = outcome.get_result()
        test = item.originalname or item.name
        if report.skipped:
            self.results[test]["skipped"] += 1
            reason = call.excinfo.value.msg or "without a reason"
            self.reasons[f"{test}: {reason}"] += 1
        elif report.when == "call" and report.passed:
            self.results[test]["passed"] += 1
        elif report.failed:
            self.fail(test, item, call.excinfo.value)

    def fail(self, test, item, error):
        kind = "missing" if isinstance(error, MISSING) else "failed"
        self.results[test][kind] += 1
        text = re.sub(r"\s+", " ", str(error))[:300]
        self.failures.append(f"{item.nodeid.split('::')[-1]}: {type(error).__name__}: {text}")
        if kind == "missing":
            self.missing[f"{test}: {type(error).__name__}: {re.sub(r'[0-9]+', 'N', text)}"] += 1

    def pytest_collectreport(self, report):
        if report.failed:
            self.errors.append(str(report.longrepr))

    def pytest_runtest_logfinish(self, nodeid, location):
        if self.args.verbose:
            print(f"{time.strftime('%H:%M:%S')} {nodeid.split('::')[-1]}", file=sys.stderr, flush=True)

    def print_table(self):
        columns = ("grid", "passed", "failed", "missing", "skipped by the peer")
        print(f"\n{'test':<52}" + "".join(f"{c:>{len(c) + 3}}" for c in columns))
        sums = collections.Counter()
        for test, counts in self.results.items():
            row = (self.grid.get(test, 1), *(counts[c.split()[0]] for c in columns[1:]))
            sums.update(dict(zip(columns, row)))
            print(f"{test:<52}" + "".join(f"{n:>{len(c) + 3}}" for c, n in zip(columns, row)))
        print(f"{'all':<52}" + "".join(f"{sums[c]:>{len(c) + 3}}" for c in columns))
        for title, counts in (("the peer's own skips", self.reasons), ("missing interfaces", self.missing)):
            if counts:
                print(f"\n{title}:")
                for text, count in counts.most_common():
                    print(f"{count:>6}  {text}")
        print("\nleft out:")
        for test, reason in self.left_out.items():
            print(f"        {test}: {reason}")
        if self.failures:
            print("\nfailures:")
            for text in self.failures[: self.args.show]:
                print(f"        {text}")
            if len(self.failures) > self.args.show:
                print(f"        and {len(self.failures) - self.args.show} more")
        for text in self.errors:
            print(text)
        return bool(self.failures or self.errors or not sums["passed"])


def copy_for_cpu(checkout, suite, folder):
    """The test file and its helpers, on the CPU. Returns the file."""
    source = (checkout / FILES[suite]).parent
    target = folder / source.name
    target.mkdir()
    for file in source.glob("*.py"):
        shutil.copy(file, target)
    file = folder / FILES[suite]
    file.write_text(file.read_text().replace('"cuda"', '"cpu"'))
    return file


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=pathlib.Path, required=True, help="of Dao-AILab/flash-attention")
    parser.add_argument("--suite", choices=sorted(FILES), default="fa2")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("-k", metavar="EXPR", help="as pytest's")
    parser.add_argument("--sample", type=int, metavar="N", help="cases of each test; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seqlen", type=int, metavar="N", help="leaves out cases with longer sequences")
    parser.add_argument("--show", type=int, default=40, metavar="N", help="failures to print")
    parser.add_argument("--verbose", action="store_true", help="prints each case when it ends")
    args = parser.parse_args()
    checkout = args.checkout.resolve()
    if not (checkout / FILES[args.suite]).is_file():
        parser.error(f"--checkout {checkout} has no {FILES[args.suite]}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU; use --device cpu")
    left_out = {**LEFT_OUT, **(LEFT_OUT_ON_CPU if args.device == "cpu" else {})}
    suite = Suite(args, left_out)
    with contextlib.ExitStack() as stack:
        file = checkout / FILES[args.suite]
        if args.device == "cpu":
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            file = copy_for_cpu(checkout, args.suite, folder)
            shims.pretend_gpu()
        shims.install(checkout, args.suite, args.device)
        sys.path.insert(0, str(file.parent))
        options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={file.parent}", "--tb=no",
                   "--no-header", "--no-summary", "-o", "console_output_style=count", "-W", "ignore"]
        options += ["-k", args.k] if args.k else []
        code = pytest.main([*options, str(file)], plugins=[suite])
    has_failed = suite.print_table()
    return 1 if has_failed or code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else 0


if __name__ == "__main__":
    sys.exit(main())
