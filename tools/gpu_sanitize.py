#!/usr/bin/env python3
"""NVIDIA's compute-sanitizer over the CUDA kernels: each of its four tools, some problems of the tests for each kernel,
several programs at once. A finding, or a problem that fails, is a failure.

racecheck may not follow a lane that arrives at an mbarrier for its warp. Whether it does is asked first, of a test in
which two warps pass values like that: where it reports hazards there, it says nothing about the subjects of ARRIVALS,
and they are not given to it.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import fnmatch
import os
import pathlib
import re
import sys
import tempfile
import time

import checklib
from mutantlib import Progress, call
from tablelib import FORMS, table

TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
ARRIVALS = ("cuda_sm90_fwd", "instructions")
CALIBRATION = "Mbarrier.OneLaneArrivesForItsWarp"
FINDINGS = 99  # the exit status of a program with findings
COLUMNS = ("subject", "tool", "result", "what", "seconds")


@dataclasses.dataclass(frozen=True)
class Subject:
    name: str
    program: str
    arguments: tuple


@dataclasses.dataclass(frozen=True)
class Outcome:
    subject: Subject
    tool: str
    result: str  # clean, findings, failed, not followed
    what: str = ""
    seconds: float = 0.0

    @property
    def is_good(self):
        return self.result in ("clean", "not followed")


def subjects_of(folder, count):
    """The kernels that the conformance program lists, the operators and the instructions."""
    program = "headrace_conformance"
    status, listed, errors = call([str(folder / program), "--device", "cuda", "--list"], 60, folder)
    kernels = re.findall(r"^kernel (cuda_\w+)( \(backward\))?", listed, re.MULTILINE)
    if status != 0 or not kernels:
        raise RuntimeError(f"{folder / program} lists no kernel of a GPU here: {errors.strip() or 'is there a GPU?'}")
    for name, is_backward in kernels:
        if is_backward:
            cases = ("--suite", "backward", "--tier", "small", "--only", "B5")
        elif name.endswith("_codes"):
            cases = ("--suite", "quantised", "--tier", "small")
        else:
            cases = ("--suite", "grid", "--count", str(count))
        yield Subject(name, program, ("--device", "cuda", "--kernel", name, *cases, "--threads", "1"))
    units = "headrace_cuda_tests"
    yield Subject("softmax", units, ("--gtest_filter=CudaSoftmax.*",))
    yield Subject("instructions", units, ("--gtest_filter=MmaSync.*:Ldmatrix.*:CpAsync.*:Reduce.*:Tma.*:Mbarrier.*:"
                                          "Stmatrix.*:WgmmaOnGpu.*",))


def judge(tool, status, output, limit):
    """(result, what) of a program's exit status and output."""
    if status is None:
        return "failed", f"time limit of {limit:.0f} s"
    found = re.search(r"^=+ (ERROR|RACECHECK) SUMMARY: (.*)$", output, re.MULTILINE)
    if found is None:
        return "failed", f"{tool} did not end: exit status {status}"
    if status == FINDINGS:
        first = re.search(r"^=+ ((?!COMPUTE-SANITIZER|(?:ERROR|RACECHECK) SUMMARY).*\S.*)$", output, re.MULTILINE)
        return "findings", f"{found[2]}; first: {first[1][:120] if first else '?'}"
    if status != 0:
        return "failed", f"exit status {status} of the tests"
    return "clean", ""


class Sanitizer:
    def __init__(self, folder, program, limit):
        self.folder, self.program, self.limit = folder.resolve(), program, limit

    def run(self, subject, tool):
        command = [self.program, "--tool", tool, "--error-exitcode", str(FINDINGS), "--print-limit", "20",
                   str(self.folder / subject.program), *subject.arguments]
        before = os.environ.get("LD_LIBRARY_PATH", "")
        path = ":".join([str(self.folder), *([before] if before else [])])
        started = time.monotonic()
        try:
            status, output, _ = call(command, self.limit, self.folder, {**os.environ, "LD_LIBRARY_PATH": path})
        except FileNotFoundError as wrong:
            raise RuntimeError(f"{wrong.filename} is missing; compute-sanitizer comes with the CUDA toolkit") from None
        return Outcome(subject, tool, *judge(tool, status, output, self.limit), time.monotonic() - started)


def run_all(sanitizer, subjects, tools, jobs, progress):
    """The outcomes, in the order of the subjects."""
    pairs = [(subject, tool) for tool in reversed(tools) for subject in subjects]  # racecheck takes longest
    outcomes = {}
    if "racecheck" in tools:
        ring = Subject("mbarriers", "headrace_cuda_tests", (f"--gtest_filter={CALIBRATION}",))
        asked = sanitizer.run(ring, "racecheck")
        progress.say(f"racecheck of {CALIBRATION}: {asked.result} {asked.what}")
        if asked.result == "findings":
            for subject in subjects:
                if subject.name in ARRIVALS:
                    why = "racecheck does not follow these arrivals here"
                    outcomes[subject, "racecheck"] = Outcome(subject, "racecheck", "not followed", why)
            pairs = [pair for pair in pairs if pair not in outcomes]
    progress.start(len(pairs))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(sanitizer.run, *pair) for pair in pairs]
        for future in concurrent.futures.as_completed(futures):
            outcome = future.result()
            outcomes[outcome.subject, outcome.tool] = outcome
            progress.finish_one()
            progress.say(f"[{progress.done}/{progress.total}] {outcome.subject.name}, {outcome.tool}: "
                         f"{outcome.result}, {outcome.seconds:.0f} s {outcome.what}")
    return [outcomes[subject, tool] for subject in subjects for tool in tools]


def report(outcomes, form):
    rows = [(x.subject.name, x.tool, x.result, x.what, f"{x.seconds:.1f}") for x in outcomes]
    counts = collections.Counter(outcome.result for outcome in outcomes)
    summary = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
    return table(COLUMNS, rows, form, "runs", summary, lambda row, width: f"{row[0]:<{width}}  {row[1]:<9}  "
                 f"{row[4]:>6} s  {row[2]}{': ' if row[3] else ''}{row[3]}")


# ---- the self-test ----

TOY = """#!/bin/sh
case "$*" in
  *racecheck*ring*|*racecheck*Mbarrier*) echo "========= RACECHECK SUMMARY: 1 hazard"; exit 99 ;;
  *memcheck*bad*)
    echo "========= Invalid __global__ write of size 4 bytes"
    echo "========= ERROR SUMMARY: 1 error"
    exit 99 ;;
  *synccheck*bad*) echo "========= ERROR SUMMARY: 0 errors"; exit 1 ;;
  *initcheck*bad*) sleep 60 ;;
esac
echo "========= ERROR SUMMARY: 0 errors"
"""


def self_test():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checklib.write_tree(folder, {"sanitizer": TOY})
        (folder / "sanitizer").chmod(0o755)
        words = {"good": "good", "bad": "bad", ARRIVALS[0]: "ring"}
        subjects = [Subject(subject, "x", (word,)) for subject, word in words.items()]
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            sanitizer = Sanitizer(folder, str(folder / "sanitizer"), 1)
            found = run_all(sanitizer, subjects, TOOLS, 4, Progress(nowhere))
    expected = {"good": ["clean"] * 4, "bad": ["findings", "failed", "failed", "clean"],
                ARRIVALS[0]: ["clean", "clean", "clean", "not followed"]}
    got = {subject.name: [x.result for x in found if x.subject == subject] for subject in subjects}
    wrong = [] if got == expected else [f"{got} instead of {expected}"]
    print("".join(f"{text}\n" for text in wrong) + f"gpu_sanitize.py: self-test: {len(wrong)} finding(s)")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="of the programs that ./dev gpu build makes")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="kernels whose name holds one")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="not all of them")
    parser.add_argument("--count", type=int, default=60, help="problems of a forward kernel's covering array")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="programs at once")
    parser.add_argument("--limit", type=float, default=1800, help="the most seconds of a program")
    parser.add_argument("--format", choices=FORMS, default="text", help="of the table")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if args.folder is None:
        parser.error("name the folder of the programs")
    patterns = [f"*{pattern}*" for pattern in args.only or ["*"]]
    try:
        sanitizer = Sanitizer(args.folder, args.sanitizer, args.limit)
        subjects = [subject for subject in subjects_of(sanitizer.folder, args.count)
                    if any(fnmatch.fnmatch(subject.name, pattern) for pattern in patterns)]
        outcomes = run_all(sanitizer, subjects, args.tool or list(TOOLS), args.jobs, Progress(sys.stderr))
    except RuntimeError as wrong:
        print(f"gpu_sanitize.py: {wrong}")
        return 1
    print(report(outcomes, args.format), end="")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
