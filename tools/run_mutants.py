#!/usr/bin/env python3
"""Plants the bugs of tools/mutants/ one at a time and runs the tests until one fails. A bug that no test sees is a hole
in the tests: the exit status is 1 then.

A mutant is a head and edits: what it breaks, the kernel that it is part of, the device that runs it, the rules that
ought to see it, and where not every CPU will do the kernel that this machine must be able to run (needs); then what to
search and change in the sources (tools/mutant_edits.py). The tree is copied to build/mutants and built there, that of
the CPU at -O1 for f32 and bf16: one element type of each size holds all of the text. The tests of a mutant's own kernel
come first, then all others, the quick ones before the long ones.
"""

import argparse
import fnmatch
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest.mock

import checklib
import mutant_edits
from mutantlib import (
    FIELDS, NAME, Outcome, Progress, Runner, Stage, Tree, judge_conformance, judge_gtest, judge_stress, read_mutant,
    read_mutants,
)
from tablelib import FORMS, table

FOLDER = "tools/mutants"
FEWEST_OF_KERNEL = 2


def conformance(name, *arguments):
    program = "tests/conformance/headrace_conformance"
    return Stage(name, program, ("--format", "json", *arguments), judge_conformance)


def small(suite, device):
    return conformance(suite, "--suite", suite, "--tier", "small", "--device", device)


def gtest(name, program, pattern="*"):
    return Stage(name, program, ("--gtest_fail_fast", f"--gtest_filter={pattern}"), judge_gtest)


def units(pattern="*"):
    return gtest(f"units {pattern}", "tests/headrace_unit_tests", pattern)


GRID, BACKWARD, BITS, CATALOGUE, QUANTISED = (
    small(suite, "cpu") for suite in ("grid", "backward", "bits", "catalogue", "quantised")
)
CAPI = gtest("capi", "tests/headrace_capi_tests")
RULES = gtest("rules", "tests/conformance/headrace_rules_tests")
ON_CPU = {
    "cpu_reference": (units("Reference*:Backward.*:*BackwardCase*"), GRID, BACKWARD),
    "cpu_flash_fwd": (GRID, CATALOGUE, BITS),
    "cpu_flash_decode": (GRID, BITS, RULES, CATALOGUE),
    "cpu_flash_bwd": (BACKWARD,),
    "cpu_softmax": (units("Softmax*"),),
    "cpu_gemm": (units("*Gemm*"),),
    "cpu_elementwise": (units("*Elementwise*:*Rope*:*Tiny*"),),
    "executor": (units("*Steps*:*Tiny*"),),
    "kv_cache": (units("*Tiny*:Session*"),),
    "paged_kv_cache": (units("PageAllocator*:*PrefixCache*:KvPages*:*KvPagesOf*:KvCache*:*RandomOperations*"),),
    "kv_append": (units("KvAppend*:Rope*"),),
    "quantised": (units("Quantis*:Session*:*RandomOperations*"), units("*Bits*")),
    "merge_states": (units("MergeStates*"),),
    "sparq": (units("Sparq*"),),
    "convert": (units("Convert*"),),
    "sampler": (units("*Sampling*:LogitFilter*:StopMatcher*"),),
    "gguf": (units("Gguf*"),),
    "tokenizer": (units("Tokenizer*:SentencePiece*:StreamDecoder*:Utf8*"),),
    "validate": (units("Validate*:Check*"),),
    "select": (units("Select*:Explain*:Run*"), GRID),
    "thread_pool": (units("ThreadPool*"), GRID),
    "session": (units("Session*:*Tiny*:Samples*:BeamSearch*"),),
    "engine": (units("Engines*:Engine*:*RandomSchedules*:Schedules*"), CAPI),
    "masks": (units("VisibleKeys*"),),
    "capi": (CAPI,),
    "cuda_arithmetic": (units("Hopper*:Sm80*:BwdPreprocess*"),),
}
ALL_ON_CPU = (
    units(),
    GRID,
    BACKWARD,
    BITS,
    CATALOGUE,
    QUANTISED,
    CAPI,
    RULES,
)
CUDA_ORACLE, CUDA_GRID, CUDA_BACKWARD, CUDA_BITS, CUDA_CATALOGUE, CUDA_QUANTISED = (
    small(suite, "cuda") for suite in ("oracle", "grid", "backward", "bits", "catalogue", "quantised")
)
CUDA_UNITS = gtest("CUDA units", "tests/cuda/headrace_cuda_tests")
CUDA_CAPI = gtest("CUDA capi", "tests/cuda/headrace_cuda_capi_tests")
CUDA_REPEATS, CUDA_BACKWARD_REPEATS = (
    gtest(f"CUDA {pattern}", "tests/cuda/headrace_cuda_capi_tests", pattern)
    for pattern in ("Kernels/Repeats.*", "Kernels/BackwardRepeats.*")
)


def stress(kernel):
    arguments = ("--fail-fast", "--seconds", "20", "--kernel", kernel)
    return Stage(f"stress {kernel}", "tests/stress/headrace_stress", arguments, judge_stress)


CUDA_SCALES = gtest("CUDA scales", "tests/cuda/headrace_cuda_tests", "FixedPointScales.*")
CUDA_MANY_RUNS = conformance("many runs", "--suite", "backward", "--only", "B7", "--tier", "small", "--device", "cuda")
# Few of the small grid's cases are such that Hopper's kernel takes them.
CUDA_CASES = conformance("3000 cases", "--suite", "grid", "--count", "3000", "--threads", "4", "--device", "cuda")
ON_CUDA = {
    "cuda_simple": (CUDA_ORACLE,),
    "cuda_sm80_fwd": (CUDA_GRID,),
    "cuda_sm90_fwd": (CUDA_CATALOGUE, CUDA_CASES, CUDA_REPEATS),
    "cuda_sm90_fwd_features": (CUDA_GRID, CUDA_CASES),
    "cuda_sm90_few_rows": (gtest("CUDA few rows", "tests/cuda/headrace_cuda_capi_tests", "*FewRows*"),
                           stress("few rows")),
    "cuda_sm90_strict_rows": (gtest("CUDA strict rows", "tests/cuda/headrace_cuda_capi_tests", "*StrictRows*"),
                              stress("strict rows")),
    "cuda_simple_bwd": (CUDA_BACKWARD,),
    "cuda_sm80_bwd": (CUDA_BACKWARD,),
    "cuda_sm80_bwd_apart": (CUDA_MANY_RUNS, CUDA_BACKWARD_REPEATS, CUDA_BACKWARD),
    "cuda_sm90_bwd": (CUDA_BACKWARD,),
    "cuda_sm90_bwd_general": (CUDA_BACKWARD,),
    "cuda_backward_rows": (CUDA_BACKWARD,),
    "cuda_fixed_point": (CUDA_SCALES, CUDA_BACKWARD),
    "cuda_backward_turns": (CUDA_MANY_RUNS, CUDA_BACKWARD_REPEATS),
    "cuda_release_fwd": (stress("cuda_sm90_fwd bf16 hd128"),),
    "cuda_release_bwd": (stress("cuda_sm90_bwd bf16 hd256"), stress("cuda_sm90_bwd bf16 hd128")),
    "cuda_release_sm80": (stress("cuda_sm80_fwd bf16"),),
    "cuda_release_gemm": (stress("cuda_sm90_gemm_tiles"),),
    "cuda_softmax": (gtest("CUDA softmax", "tests/cuda/headrace_cuda_tests", "*Softmax*"),),
    "cuda_kv_append": (gtest("CUDA append", "tests/cuda/headrace_cuda_tests", "CudaKvAppend*"),),
    "cuda_sm90_decode": (
        gtest("CUDA decode", "tests/cuda/headrace_cuda_capi_tests", "*DecodeBits*:*DecodePages*"),
    ),
    "cuda_decode_prefix": (gtest("CUDA prefixes", "tests/cuda/headrace_cuda_capi_tests", "*DecodePrefix*"),),
    "cuda_sm80_codes": (gtest("CUDA codes", "tests/cuda/headrace_cuda_tests", "CudaCodes*"),),
    "cuda_pages": (
        gtest("CUDA pages", "tests/cuda/headrace_cuda_capi_tests", "CudaPageIndptr.*:*PrefillPages*"),
    ),
    "cuda_merge_states": (gtest("CUDA merge", "tests/cuda/headrace_cuda_tests", "CudaMergeStates*"),),
    "cuda_sparq": (gtest("CUDA SparQ", "tests/cuda/headrace_cuda_tests", "CudaSparq*"),),
    "cuda_append_attention": (
        gtest("attention beside an append", "tests/cuda/headrace_cuda_tests", "*BesideAnAppend*:*GemmOnGpu*"),
    ),
    "cuda_gemm": (gtest("CUDA products", "tests/cuda/headrace_cuda_tests", "*GemmOnGpu*"),),
    "cuda_executor": (gtest("CUDA decoder", "tests/cuda/headrace_cuda_tests", "*DecoderOnGpu*"),),
    "cuda_sampler": (gtest("CUDA sampler", "tests/cuda/headrace_cuda_tests", "*DeviceSampler*"),),
    "cuda_engines": (
        gtest("CUDA engines", "tests/cuda/headrace_cuda_tests", "EnginesOnGpu*:EngineOnGpu/Bits.TokensOf*"),
    ),
}
ALL_ON_CUDA = (CUDA_ORACLE, CUDA_GRID, CUDA_BACKWARD, CUDA_BITS, CUDA_CATALOGUE, CUDA_QUANTISED, CUDA_UNITS, CUDA_CAPI)
DEVICES = {"cpu": (ON_CPU, ALL_ON_CPU), "cuda": (ON_CUDA, ALL_ON_CUDA)}


# ---- the mutants of a tree ----


def check_mutants(root):
    """Findings about what is in a tree: heads, names, and whether each mutant's text is found."""
    mutants, findings = read_mutants(root / FOLDER)
    for mutant in mutants:
        if mutant.kernel not in DEVICES.get(mutant.device, ({},))[0]:
            findings.append(f"{mutant.name}: there is no kernel '{mutant.kernel}' of device '{mutant.device}'")
        try:
            mutant_edits.planted(root, mutant.edits)
        except mutant_edits.Wrong as wrong:
            findings.append(f"{mutant.name}: does not apply: {wrong}")
    return findings


def new_mutant(root, name):
    """Writes the mutant of what the working tree changes; its path. The head is left to be filled in."""
    numbers = [path.name[:3] for path in (root / FOLDER).glob("*.mutant")]
    if not re.fullmatch(NAME, name):
        raise mutant_edits.Wrong(f"--new: the name must be NNN-what-it-does, not '{name}'")
    if name[:3] <= max(numbers, default="000"):
        raise mutant_edits.Wrong(f"--new: numbers are never given twice: take one above {max(numbers)}, not {name[:3]}")
    path = root / FOLDER / f"{name}.mutant"
    head = "".join(f"{field}: \n" for field in FIELDS)
    edits = mutant_edits.to_text(mutant_edits.from_working_tree(root))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{head}\n{edits}", encoding="utf-8")
    return path


def check_counts(root):
    """Whether each kernel has some."""
    mutants, findings = read_mutants(root / FOLDER)
    for kernels, _ in DEVICES.values():
        for kernel in kernels:
            count = sum(mutant.kernel == kernel for mutant in mutants)
            if count < FEWEST_OF_KERNEL:
                findings.append(f"{count} mutants of {kernel}, at least {FEWEST_OF_KERNEL}")
    return findings


# ---- reports ----

COLUMNS = ("mutant", "kernel", "breaks", "rules", "status", "by", "seconds")


def row_of(outcome):
    m = outcome.mutant
    return (m.name, m.kernel, m.breaks, m.rules, outcome.status, outcome.by, f"{outcome.seconds:.1f}")


def summary(outcomes):
    ran = [outcome for outcome in outcomes if outcome.status != "skipped"]
    killed = sum(outcome.status == "killed" for outcome in ran)
    share = f" ({100 * killed / len(ran):.1f} %)" if ran else ""
    others = [outcome.status for outcome in outcomes if outcome.status != "killed"]
    rest = "".join(f", {others.count(status)} {status}" for status in sorted(set(others)))
    minutes = sum(outcome.seconds for outcome in ran) / 60
    return f"{killed} of {len(ran)} mutants killed{share}{rest}; {minutes:.1f} minutes"


def report(outcomes, form):
    line = lambda row, width: f"{row[0]:<{width}}  {row[4]:<8} {row[6]:>7} s  {row[5]}"
    return table(COLUMNS, [row_of(outcome) for outcome in outcomes], form, "mutants", summary(outcomes), line)


# ---- running them ----


def make_tree(root, device, jobs):
    # Compiling is most of the time: -O1 halves it.
    quick = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"]
    configure = ["cmake", "--preset", "cpu-only", *quick, "-DHEADRACE_DTYPES=f32;bf16", "-DHEADRACE_BUILD_CLI=OFF"]
    if device == "cuda":
        configure = ["cmake", "--preset", "release", "-DHEADRACE_CUDA=ON", "-DHEADRACE_BUILD_CLI=OFF"]
    build = ["cmake", "--build", ".", "-j", str(jobs), "--target"]
    return Tree(root, root / "build" / "mutants" / "tree", device, configure, build)


def kernels_here(tree):
    """The kernels that this machine runs, as the conformance program lists them."""
    command = [str(tree.binaries / GRID.program), "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^kernel (\w+)(?: \(backward\))?$", listed, re.MULTILINE))


def run_all(root, args, mutants, progress):
    tree = make_tree(root, args.device, args.jobs)
    status, output, errors = tree.configure()
    if status != 0:
        raise RuntimeError(f"the copy of the tree cannot be configured:\n{(output + errors)[-2000:]}")
    runner = Runner(tree, *DEVICES[args.device], progress)
    runner.baseline()
    kernels = kernels_here(tree)
    outcomes = []
    progress.start(sum(mutant.device == args.device for mutant in mutants))
    for mutant in mutants:
        if mutant.device != args.device:
            outcomes.append(Outcome(mutant, "skipped", f"runs with --device {mutant.device}"))
            continue
        if mutant.needs and mutant.needs not in kernels:
            outcome = Outcome(mutant, "skipped", f"{mutant.needs} does not run on this machine")
        else:
            outcome = runner.run(mutant)
        outcomes.append(outcome)
        progress.finish_one()
        count = f"[{progress.done}/{progress.total}]"
        progress.say(f"{count} {mutant.name}: {outcome.status}, {outcome.seconds:.0f} s, {outcome.by}")
    tree.restore()
    return outcomes


def run_command(root, args):
    if args.new:
        try:
            print(f"{new_mutant(root, args.new).relative_to(root)}: fill in its head, and undo the change")
            return 0
        except mutant_edits.Wrong as wrong:
            print(f"run_mutants.py: {wrong}")
            return 1
    findings = check_mutants(root) or check_counts(root)
    mutants, _ = read_mutants(root / FOLDER)
    if findings or args.check:
        print("".join(f"{text}\n" for text in findings) + f"{len(mutants)} mutants, {len(findings)} finding(s)")
        return 1 if findings else 0
    patterns = [f"*{pattern}*" for pattern in args.only or ["*"]]
    chosen = [m for m in mutants if any(fnmatch.fnmatch(f"{m.name} {m.kernel}", pattern) for pattern in patterns)]
    if args.list:
        print("".join(f"{m.name} ({m.kernel}): {m.breaks}\n" for m in chosen), end="")
        return 0
    if not any(mutant.device == args.device for mutant in chosen):
        print(f"run_mutants.py: no mutant of device {args.device} is left by --only; see --list")
        return 2
    try:
        outcomes = run_all(root, args, chosen, Progress(sys.stderr))
    except RuntimeError as wrong:
        print(f"run_mutants.py: {wrong}")
        return 1
    print(report(outcomes, args.format), end="")
    return exit_status(outcomes)


def exit_status(outcomes):
    is_run = any(outcome.status == "killed" for outcome in outcomes)
    return 0 if is_run and all(outcome.is_good for outcome in outcomes) else 1


# ---- the self-test ----

HEAD = "breaks: a toy\nkernel: toy\ndevice: cpu\nrules: unit\n\n"


def mutant_of(name, old, new):
    return f"{HEAD}file: {name}\n@@\n-{old}\n+{new}\n"


# A tree whose build is `sh build.sh` and whose test is `sh test.sh`: (mutant, what must come of it).
TOY = {"build.sh": "true\n", "test.sh": "grep -q good value\n", "value": "good\n", "unread": "good\n"}
TOY_MUTANTS = {
    "001-kills": (mutant_of("value", "good", "bad"), "killed", "toy: exit status 1"),
    "002-survives": (mutant_of("unread", "good", "bad"), "survived", ""),
    "003-other-context": (mutant_of("value", "best", "bad"), "does not apply", "value: found 0 times"),
    "004-breaks-the-build": (mutant_of("build.sh", "true", "echo error: toy; false"), "does not build", "error: toy"),
    "005-hangs": (mutant_of("test.sh", "grep -q good value", "sleep 60"), "killed", "time limit"),
    "006-crashes": (mutant_of("test.sh", "grep -q good value", "kill -SEGV $$"), "killed", "SIGSEGV"),
}


def toy_runner(folder, files):
    checklib.write_tree(folder / "root", files)
    tree = Tree(folder / "root", folder / "tree", "toy", [], ["sh", "-c", "cd ../.. && sh build.sh"])
    tree.binaries.mkdir(parents=True)
    stage = Stage("toy", "run", (), lambda output: None)
    (tree.binaries / "run").write_text("#!/bin/sh\ncd ../.. && . ./test.sh\n", encoding="utf-8")
    (tree.binaries / "run").chmod(0o755)
    return Runner(tree, {"toy": ()}, [stage], Progress(io.StringIO()))


def test_runner():
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runner = toy_runner(folder, TOY)
        runner.baseline()
        runner.limits = {"run": 1}
        outcomes = []
        for stem, (text, status, by) in TOY_MUTANTS.items():
            path = folder / f"{stem}.mutant"
            path.write_text(text, encoding="utf-8")
            outcomes.append(runner.run(read_mutant(path)))
            if outcomes[-1].status != status or by not in outcomes[-1].by:
                wrong.append(f"{stem}: {outcomes[-1].status} by '{outcomes[-1].by}', expected {status} by '{by}'")
        if "2 of 6" not in summary(outcomes[:3] * 2) or [exit_status([x]) for x in outcomes] != [0, 1, 1, 1, 0, 0]:
            wrong.append(f"the end: {summary(outcomes)}, {[exit_status([x]) for x in outcomes]}")
    with tempfile.TemporaryDirectory() as name:
        try:
            toy_runner(pathlib.Path(name), {**TOY, "value": "bad\n"}).baseline()
            wrong.append("a tree that fails without a mutant was accepted")
        except RuntimeError:
            pass
    return wrong


def test_judges():
    failure = {"kernel": "k", "case": "A1", "text": "R3 element 0 is 1"}
    of_bits = {**failure, "case": "threads dtype=f32"}
    crash = "[ RUN      ] A.B/0\n"
    cases = [
        (judge_conformance(json.dumps({"suite": "grid", "failures": [failure]})), "grid: R3 (k)"),
        (judge_conformance(json.dumps({"suite": "bits", "failures": [of_bits]})), "bits threads: R3 (k)"),
        (judge_conformance(json.dumps({"suite": "grid", "failures": []})), None),
        (judge_conformance("crashed"), None),
        (judge_gtest(crash + "[       OK ] A.B/0\n[ RUN      ] C.D\n[  FAILED  ] C.D (0 ms)\n"), "unit C.D"),
        (judge_gtest(crash), "unit A.B/0"),
        (judge_gtest(""), None),
    ]
    return [f"a judge said {got}, expected {expected}" for got, expected in cases if got != expected]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress():
    """On a terminal the line is written over and says how much is left; a log has whole lines alone."""
    texts = []
    for stream in (Terminal(), io.StringIO()):
        with unittest.mock.patch.dict(os.environ, {"TERM": "xterm", "COLUMNS": "80"}):
            progress = Progress(stream)
            progress.start(2)
            progress.finish_one()
            progress.show("001-toy: " + "long " * 20)
            progress.say("001-toy: killed")
        texts.append(stream.getvalue())
    line = re.fullmatch(r"\r\033\[K(\[1/2, about 0 min left\] 001-toy: [long ]*)\r\033\[K001-toy: killed\n", texts[0])
    wrong = [] if line and len(line[1]) < 80 else [f"the line of a terminal: {texts[0]!r}"]
    return wrong + ([] if texts[1] == "001-toy: killed\n" else [f"the line of a log: {texts[1]!r}"])


# Edits of a file of these lines: (edits, what becomes of the file or what the finding says).
LINES = "int f() {\n  a();\n\n  b();\n  a();\n}\n"
EDITS = {
    "replaces": ("@@\n-b();\n+  c();\n", LINES.replace("b", "c")),
    "indented otherwise": ("@@\n     b();  \n-\ta();\n }\n", LINES.replace("b();\n  a();", "b();")),
    "a blank line": ("@@\n   a();\n\n-  b();\n+  c();\n\n", LINES.replace("b", "c")),
    "adds": ("@@\n+  c();\n   b();\n", LINES.replace("  b", "  c();\n  b")),
    "in any order": ("@@\n-  b();\n@@\n int f() {\n+  b();\n", "int f() {\n  b();\n  a();\n\n  a();\n}\n"),
    "twice": ("@@\n-  a();\n", "x: found 2 times (lines 2, 5), must be found once: add context until it is unique:\n"),
    "overlap": ("@@\n-b();\n-a();\n@@\n a();\n-}\n", "x:5: two edits search this line"),
    "searches nothing": ("@@\n+  c();\n", "searches for nothing"),
    "changes nothing": ("@@\n   b();\n", "changes nothing"),
    "no edit": ("", "it has no edit"),
    "no sign": ("@@\nb();\n", "'b();' is no line of an edit"),
}


def test_edits():
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for case, (text, expected) in EDITS.items():
            checklib.write_tree(folder, {"x": LINES})
            try:
                got = mutant_edits.plant(folder, mutant_edits.parse(f"file: x\n{text}")) or (folder / "x").read_text()
            except mutant_edits.Wrong as finding:
                got = str(finding)
            if expected not in got or (expected.endswith("}\n") and expected != got):
                wrong.append(f"edits, {case}: {got!r}, expected {expected!r}")
    return wrong


def test_new():
    """What --new writes plants the working tree's change, in each of the files, at places that are alike."""
    before = {"x": LINES, "y": "1\n2\n" * 8 + "3\n"}
    after = {"x": LINES.replace("a();\n}", "}").replace("{\n", "{\n  b();\n"), "y": "1\n2\n" * 7 + "1\n\n3\n4\n"}
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        checklib.write_tree(root, before)
        who = ("-c", "user.name=a", "-c", "user.email=a")
        for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "a")):
            mutant_edits.git(root, *command)
        checklib.write_tree(root, after)
        path = new_mutant(root, "002-new")
        wrong += [] if "'breaks: ' is no line of a head" in check_mutants(root)[0] else ["an empty head was accepted"]
        path.write_text(HEAD + path.read_text().partition("\n\n")[2])
        checklib.write_tree(root, before)
        refusal = mutant_edits.plant(root, read_mutant(path).edits)
        made = {file: (root / file).read_text() for file in before}
        wrong += [] if made == after else [f"--new: {made} ({refusal}), expected {after}"]
        refusals = {"002-again": "above 002", "3-name": "must be NNN", "003-unchanged": "no tracked file"}
        for taken, expected in refusals.items():
            checklib.write_tree(root, before)
            try:
                wrong.append(f"--new {taken} wrote {new_mutant(root, taken)}")
            except mutant_edits.Wrong as finding:
                wrong += [] if expected in str(finding) else [f"--new {taken}: {finding}"]
    return wrong


def self_test():
    head, edit = HEAD.replace("toy\ndevice", "cpu_gemm\ndevice"), "file: value\n@@\n-good\n+bad\n"
    tree, name = {"value": "good\n"}, f"{FOLDER}/001-a.mutant"
    cases = [
        ("applies", {**tree, name: head + edit}, None),
        ("does not apply", {"value": "best\n", name: head + edit}, "001-a: does not apply: value: found 0 times"),
        ("no such file", {name: head + edit}, "value: there is no such file"),
        ("no such kernel", {**tree, name: mutant_of("value", "good", "bad")}, "no kernel 'toy'"),
        ("name", {**tree, f"{FOLDER}/1-a.mutant": head + edit}, "must be NNN"),
        ("no rules", {**tree, name: head.replace("rules: unit\n", "") + edit}, "lacks rules"),
        ("no head", {**tree, name: edit}, "is no line of a head"),
        ("no edit", {**tree, name: head}, "001-a.mutant: it has no edit"),
        ("twice", {**tree, **{f"{FOLDER}/001-{c}.mutant": head + edit for c in "ab"}}, "001 appears twice"),
    ]
    findings = checklib.self_test(check_mutants, cases)
    findings += test_edits() + test_new() + test_runner() + test_judges() + test_progress()
    print("".join(f"{text}\n" for text in findings) + f"run_mutants.py: self-test: {len(findings)} finding(s)")
    return 1 if findings else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", metavar="PATTERN", action="append", help="those whose name or kernel holds one")
    parser.add_argument("--device", choices=sorted(DEVICES), default="cpu", help="cuda needs a GPU and nvcc")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files that are compiled at once")
    parser.add_argument("--format", choices=FORMS, default="text", help="of the table")
    parser.add_argument("--list", action="store_true", help="names the mutants")
    parser.add_argument("--check", action="store_true", help="only: is each mutant's text found, are there enough")
    parser.add_argument("--new", metavar="NNN-WHAT-IT-DOES", help="only: write a mutant of the working tree's change")
    parser.add_argument("--self-test", action="store_true", help="only: prove that this program sees what it should")
    args = parser.parse_args()
    return self_test() if args.self_test else run_command(pathlib.Path(__file__).resolve().parent.parent, args)


if __name__ == "__main__":
    sys.exit(main())
