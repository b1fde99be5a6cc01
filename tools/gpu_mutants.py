#!/usr/bin/env python3
"""Mutants of CUDA kernels for a machine with a GPU and no compiler: `build` makes programs, `test` runs them there.

A mutant in a header would change dozens of objects. Those of UNITS that include it are compiled again, for one GPU; the
rest of a program is that of the release build, and so are all programs without a mutant. What is seen in some objects
is seen in all; what survives may still be seen in an object that was left as it was. Only the tests of a mutant's own
kernel run, several mutants at once.
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import io
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import time

import checklib
import mutant_edits
from mutantlib import (
    SECONDS_MORE, SLOWER, Outcome, Progress, Stage, Tree, call, read_mutants, sass_complaint, verdict,
)  # fmt: skip
from run_mutants import FOLDER, ON_CUDA, exit_status, report
from tablelib import FORMS

# Of each kernel, files below src/backends/cuda that its tests reach: a wide and a narrow tile, two element types.
UNITS = {
    "cuda_simple": ["simple/fwd/f64"],
    "cuda_simple_bwd": ["simple/bwd/f32"],
    "cuda_sm80_fwd": ["sm80/fwd/bf16_hd64", "sm80/fwd/f32_hd64"],
    "cuda_sm80_bwd": ["sm80/bwd/bf16_hd64", "sm80/bwd/f32_hd64"],
    "cuda_backward_turns": ["sm80/bwd/bf16_hd64", "sm80/bwd/f32_hd64"],
    "cuda_sm90_fwd": ["sm90/fwd/hd64", "sm90/fwd/hd64_short", "sm90/fwd/hd128"],
    "cuda_sm90_few_rows": ["sm90/fwd/few64", "sm90/fwd/few128", "sm90/fwd/few256", "sm90/fwd/few128_softcap",
                            "sm90/fwd/combine"],
    "cuda_sm90_strict_rows": ["sm90/fwd/few128_strict", "sm90/fwd/strict64", "sm90/fwd/strict128",
                              "sm90/fwd/strict256", "sm90/fwd/combine", "sm90/fwd/transposed64_rows8",
                              "sm90/fwd/transposed64_rows16", "sm90/fwd/transposed128_rows8",
                              "sm90/fwd/transposed128_rows16", "sm90/fwd/transposed256_rows8",
                              "sm90/fwd/transposed256_rows16", "sm90/fwd/parts64_rows8", "sm90/fwd/parts64_rows16",
                              "sm90/fwd/parts128_rows8", "sm90/fwd/parts128_rows16"],
    "cuda_sm90_fwd_features": ["sm90/fwd/hd64_alibi", "sm90/fwd/hd128_softcap", "sm90/fwd/hd64_bias",
                               "sm90/fwd/hd128_bias", "sm90/fwd/hd64_dropout"],
    "cuda_sm80_bwd_apart": ["sm80/bwd/bf16_hd128", "sm80/bwd/f16_hd256"],
    "cuda_sm90_bwd": ["sm90/bwd/hd64", "sm90/bwd/hd128", "sm90/bwd/hd256", "sm90/bwd/postprocess"],
    "cuda_sm90_bwd_general": ["sm90/bwd/hd64_general", "sm90/bwd/hd128_general", "sm90/bwd/hd256_general"],
    "cuda_release_fwd": ["sm90/fwd/hd128", "sm90/fwd/hd128_bias", "sm90/fwd/hd128_dropout"],
    "cuda_release_bwd": ["sm90/bwd/hd256", "sm90/bwd/hd128"],
    "cuda_release_sm80": ["sm80/fwd/bf16_hd64", "sm80/fwd/bf16_hd128"],
    "cuda_release_gemm": ["gemm/tiles_bf16", "gemm/tiles_f16"],
    "cuda_softmax": ["softmax/f32"],
    "cuda_kv_append": ["elementwise/kv_append"],
    "cuda_sm90_decode": ["sm90/decode/hd64", "sm90/decode/hd128"],
    "cuda_decode_prefix": ["sm90/decode/prefix", "sm90/decode/hd64_prefix", "sm90/decode/hd128_prefix"],
    "cuda_sm80_codes": ["sm80/codes/bf16_hd64", "sm80/codes/bf16_hd128"],
    "cuda_pages": ["sm90/decode/hd128", "sm80/fwd/f32_hd64", "sm90/fwd/hd64", "sm90/fwd/hd128",
                   "sm90/fwd/strict256"],
    "cuda_merge_states": ["elementwise/merge_states"],
    "cuda_sparq": ["sparq/scores", "sparq/attend", "sparq/append"],
    "cuda_gemm": ["gemm/stream", "gemm/tiles_bf16", "gemm/tiles_f16", "gemm/wide_bf16", "gemm/wide_f16"],
    "cuda_append_attention": ["gemm/stream", "sm90/decode/hd64", "sm90/decode/hd128"],
    "cuda_executor": [],  # of the host: all that a mutant changes
    "cuda_engines": [],  # the same
    "cuda_sampler": ["sampling/logit_passes"],
    "cuda_backward_rows": ["common/bwd_preprocess"],
    "cuda_fixed_point": ["common/bwd_preprocess", "sm90/bwd/postprocess", "sm90/bwd/hd64_fixed",
                         "sm90/bwd/hd128_fixed", "sm90/bwd/hd256_fixed"],
}
OBJECTS = "src/CMakeFiles/headrace_objects.dir/"
PROGRAMS = ("tests/conformance/headrace_conformance", "tests/cuda/headrace_cuda_tests",
            "tests/cuda/headrace_cuda_capi_tests", "tests/stress/headrace_stress")
OF_LIBRARY = PROGRAMS[2]  # has no objects of the library in itself
BASE = "base"  # the folder of the programs without a mutant
KILLED_BY = "killed-by"  # what the machine code of a mutant showed when it was built


# ---- building ----


def for_one_gpu(command, gpu):
    """nvcc's command, with only the code of that GPU."""
    return re.sub(r" -gencode=arch=\w+,code=(\w+)", lambda m: m[0] if m[1] == gpu else "", command)


def of_sources(command, home, other):
    """A compiler's command, for the sources of another tree."""
    return re.sub(rf"{re.escape(home)}/(src|include)(?=[/ ]|$)", rf"{other}/\1", command)


class Build:
    """A finished build by Ninja, whose commands also make objects and programs that it does not have."""

    def __init__(self, folder):
        self.folder = folder
        cache = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
        self.home = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.MULTILINE)[1]
        self.library = next(f"src/{path.name}" for path in sorted((folder / "src").glob("libheadrace.so.*.*.*")))
        self.includes = dict(self.read_includes())

    def ninja(self, *arguments):
        return subprocess.run(["ninja", *arguments], cwd=self.folder, capture_output=True, text=True, check=True).stdout

    def command(self, output):
        return self.ninja("-t", "commands", "-s", output).splitlines()[-1]

    def read_includes(self):
        """(object, the files that it is made of, relative to the tree)"""
        for block in self.ninja("-t", "deps").strip().split("\n\n"):
            first, *files = block.strip().splitlines()
            name = first.partition(":")[0]
            if name.startswith(OBJECTS):
                paths = (os.path.join(self.folder, file.strip()) for file in files)
                yield name, {os.path.relpath(os.path.normpath(path), self.home) for path in paths}

    def objects(self, mutant):
        """Those that a mutant changes and that its tests reach."""
        changed = {edit.file for edit in mutant.edits}
        all_of_them = [name for name, files in self.includes.items() if changed & files]
        reached = {f"{OBJECTS}backends/cuda/{unit}.cu.o" for unit in UNITS[mutant.kernel]}
        return [name for name in all_of_them if name in reached] or all_of_them

    def compile(self, name, tree, folder, gpu):
        """Into `folder`; the compiler's words where it fails."""
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        command = of_sources(for_one_gpu(self.command(name), gpu), self.home, tree)
        return failed(subprocess.run(command, cwd=folder, shell=True, capture_output=True, text=True))

    def link(self, output, objects, folder):
        """A program or the library, stripped, with `objects` in place of its own: they come before the archive."""
        command = self.command(output)
        name = re.search(r"-Wl,-soname,(\S+)", command)
        to = folder / (name[1] if name else pathlib.PurePath(output).name)
        folder.mkdir(parents=True, exist_ok=True)
        command = command.replace(f" -o {output} ", " ".join([" -s -o", str(to), *map(str, objects), ""]))
        return failed(subprocess.run(command, cwd=self.folder, shell=True, capture_output=True, text=True))


def failed(done):
    return None if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]


def build_mutant(build, tree, mutant, folder, gpu):
    """None, or what went wrong."""
    tree.restore()
    if wrong := mutant_edits.plant(tree.copy, mutant.edits):
        return f"does not apply: {wrong}"
    if not (objects := build.objects(mutant)):
        return "no object of the build is made of what it changes"
    made = tree.copy.parent / "objects" / mutant.name
    for name in objects:
        if wrong := build.compile(name, tree.copy, made, gpu):
            return f"{name} does not build: {wrong}"
    if by := sass_complaint(mutant, [made / name for name in objects]):
        (folder / mutant.name).mkdir(parents=True, exist_ok=True)
        (folder / mutant.name / KILLED_BY).write_text(by, encoding="utf-8")
        return None
    for program in sorted({stage.program for stage in ON_CUDA[mutant.kernel]}):
        output = build.library if program == OF_LIBRARY else program
        if wrong := build.link(output, [made / name for name in objects], folder / mutant.name):
            return f"{output} cannot be linked: {wrong}"
    return None


def build_all(root, args, mutants, progress):
    build = Build(args.release.resolve())
    trees = queue.SimpleQueue()  # one for each mutant that is being built
    for job in range(args.jobs):
        trees.put(Tree(root, root / "build" / "mutants" / "gpu" / f"tree{job}", "none", [], []))
    for output in (*PROGRAMS, build.library):
        if wrong := build.link(output, [], args.folder / BASE):
            raise RuntimeError(f"{output} cannot be linked: {wrong}")

    def build_one(mutant):
        started, tree = time.monotonic(), trees.get()
        try:
            return mutant, build_mutant(build, tree, mutant, args.folder, args.gpu), time.monotonic() - started
        finally:
            trees.put(tree)

    progress.start(len(mutants))
    bad = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(build_one, mutant) for mutant in mutants]):
            mutant, wrong, seconds = done.result()
            progress.finish_one()
            progress.say(f"[{progress.done}/{progress.total}] {mutant.name}: {len(build.objects(mutant))} objects, "
                         f"{seconds:.0f} s{', ' + wrong if wrong else ''}")
            bad += [f"{mutant.name}: {wrong}"] if wrong else []
    if bad:
        raise RuntimeError("\n".join(bad))
    return 0


# ---- running ----


def stages_of(mutant):
    """The stages of its kernel, those of the conformance program for the one kernel that it needs."""
    for stage in ON_CUDA[mutant.kernel]:
        is_general = stage.program == PROGRAMS[0] and mutant.needs
        arguments = (*stage.arguments, "--kernel", mutant.needs) if is_general else stage.arguments
        yield dataclasses.replace(stage, arguments=arguments)


class Programs:
    """What `build` made, and what it does without a mutant."""

    def __init__(self, folder, most_seconds):
        self.folder, self.most_seconds = folder.resolve(), most_seconds
        self.limits, self.wrong = {}, {}  # of a stage

    def run(self, name, stage, limit):
        """(None or what failed, seconds)"""
        program = pathlib.PurePath(stage.program).name
        folders = [self.folder / name, self.folder / BASE]
        path = next(folder / program for folder in folders if (folder / program).is_file())
        before = os.environ.get("LD_LIBRARY_PATH", "")
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join([*map(str, folders), *([before] if before else [])])}
        started = time.monotonic()
        done = call([str(path), *stage.arguments], limit, self.folder, environment)
        nothing = "every test was skipped" if "[  PASSED  ] 0 tests" in done[1] and done[0] == 0 else None
        return verdict(stage, limit, *done) or nothing, time.monotonic() - started

    def baseline(self, stage):
        wrong, seconds = self.run(BASE, stage, self.most_seconds)
        self.limits[stage] = min(SECONDS_MORE + SLOWER * seconds, self.most_seconds)
        self.wrong[stage] = wrong
        return f"without a mutant: {stage.name} {' '.join(stage.arguments)}: {wrong or 'passes'}, {seconds:.0f} s"

    def mutant(self, mutant, stages):
        if not (self.folder / mutant.name).is_dir():
            return Outcome(mutant, "skipped", "was not built")
        if (killed_by := self.folder / mutant.name / KILLED_BY).is_file():
            return Outcome(mutant, "killed", killed_by.read_text(encoding="utf-8"))
        started, by = time.monotonic(), None
        good = [stage for stage in stages if not self.wrong[stage]]
        if not good:
            return Outcome(mutant, "not tested", f"fails without a mutant: {self.wrong[stages[0]]}")
        for stage in good:
            by = by or self.run(mutant.name, stage, self.limits[stage])[0]
        return Outcome(mutant, "killed" if by else "survived", by or "", time.monotonic() - started)


def test_all(programs, mutants, stages, jobs, progress):
    """The outcomes. `stages`: those of each mutant's name."""
    everything = list(dict.fromkeys(stage for mutant in mutants for stage in stages[mutant.name]))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(programs.baseline, everything):
            progress.say(line)
        progress.start(len(mutants))
        futures = [pool.submit(programs.mutant, mutant, stages[mutant.name]) for mutant in mutants]
        for future in concurrent.futures.as_completed(futures):
            outcome = future.result()
            progress.finish_one()
            progress.say(f"[{progress.done}/{progress.total}] {outcome.mutant.name}: {outcome.status}, "
                         f"{outcome.seconds:.0f} s, {outcome.by}")
    return [future.result() for future in futures]


# ---- the self-test ----

TOY = "breaks: a toy\nkernel: toy\ndevice: cuda\nrules: unit\n\nfile: x\n@@\n-a\n+b\n"
TOY_PROGRAMS = {
    "base/run": "#!/bin/sh\nexit $1\n",
    "001-kills/run": "#!/bin/sh\nexit 1\n",
    "002-survives/run": "#!/bin/sh\nexit 0\n",
    "003-hangs/run": "#!/bin/sh\nsleep 60\n",
    "004-of-the-base/other": "",
    f"006-when-it-was-built/{KILLED_BY}": "sass: an arrival",
}


def self_test():
    old, new = (f" -gencode=arch=compute_{sm},code=sm_{sm}" for sm in ("80", "90a"))
    command, wanted = (f"nvcc -I{tree}/src -I{tree}/include{dropped}{new} -c {tree}/src/x.cu -o src/x.o"
                       for tree, dropped in (("/a", old), ("/b", "")))
    wrong = [] if of_sources(for_one_gpu(command, "sm_90a"), "/a", "/b") == wanted else ["the compiler's command"]
    wrong += [f"no units of {kernel}" for kernel in ON_CUDA if kernel not in UNITS]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checklib.write_tree(folder, {**TOY_PROGRAMS, **{f"{k.split('/')[0]}.mutant": TOY for k in TOY_PROGRAMS}})
        (folder / "base.mutant").rename(folder / "005-was-not-built.mutant")
        for path in folder.glob("*/run"):
            path.chmod(0o755)
        mutants, _ = read_mutants(folder)
        good, bad = (Stage("toy", "run", (status,), lambda output: None) for status in ("0", "1"))
        stages = {mutant.name: [good] for mutant in mutants}
        found = [x.status for x in test_all(Programs(folder, 1), mutants, stages, 2, Progress(io.StringIO()))]
        expected = ["killed", "survived", "killed", "survived", "skipped", "killed"]
        wrong += [] if found == expected else [f"{found} instead of {expected}"]
        found = test_all(Programs(folder, 1), mutants[:1], {mutants[0].name: [bad]}, 1, Progress(io.StringIO()))[0]
        wrong += [] if found.status == "not tested" and exit_status([found]) == 1 else [f"a bad baseline: {found}"]
    print("".join(f"{text}\n" for text in wrong) + f"gpu_mutants.py: self-test: {len(wrong)} finding(s)")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("action", choices=("build", "test", "self-test"))
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="of the programs")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="those whose name or kernel holds one")
    release = pathlib.Path("build/release")
    parser.add_argument("--release", type=pathlib.Path, default=release, help="build: a finished build")
    parser.add_argument("--gpu", default="sm_90a", help="build: what mutants are compiled for")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="mutants at once")
    parser.add_argument("--limit", type=float, default=1800, help="test: the most seconds of a program")
    parser.add_argument("--format", choices=FORMS, default="text", help="test: of the table")
    args = parser.parse_args()
    if args.action == "self-test":
        return self_test()
    if args.folder is None:
        parser.error("name the folder of the programs")
    root = pathlib.Path(__file__).resolve().parent.parent
    patterns = [f"*{pattern}*" for pattern in args.only or ["*"]]
    mutants = [m for m in read_mutants(root / FOLDER)[0] if m.device == "cuda"
               and any(fnmatch.fnmatch(f"{m.name} {m.kernel}", pattern) for pattern in patterns)]
    progress = Progress(sys.stderr)
    try:
        if args.action == "build":
            args.folder = args.folder.resolve()
            return build_all(root, args, mutants, progress)
        stages = {mutant.name: list(stages_of(mutant)) for mutant in mutants}
        outcomes = test_all(Programs(args.folder, args.limit), mutants, stages, args.jobs, progress)
    except RuntimeError as wrong:
        print(f"gpu_mutants.py: {wrong}")
        return 1
    print(report(outcomes, args.format), end="")
    return exit_status(outcomes)


if __name__ == "__main__":
    sys.exit(main())
