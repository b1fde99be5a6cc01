"""What tools/run_mutants.py is made of: edits with a head, the tree that they are planted in, programs of tests and
what they say.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import checklib
import mutant_edits

FIELDS = ("breaks", "kernel", "device", "rules")
OPTIONAL = ("needs",)
NAME = r"\d{3}-[a-z0-9-]+"
BUILD_SECONDS = 1800
# A stage may take so many times as long as without a mutant and so many seconds more: what hangs is a bug that is seen.
SLOWER, SECONDS_MORE = 10, 60


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    breaks: str
    kernel: str
    device: str
    rules: str
    edits: tuple
    needs: str = ""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A program of the tests. `judge` makes of its output which test failed, or None where that says nothing."""

    name: str
    program: str
    arguments: tuple
    judge: object

    @property
    def target(self):
        return pathlib.PurePath(self.program).name


@dataclasses.dataclass
class Outcome:
    mutant: Mutant
    status: str  # killed, survived, skipped, does not apply, does not build
    by: str = ""
    seconds: float = 0.0

    @property
    def is_good(self):
        return self.status in ("killed", "skipped")


# ---- what the tests say ----


def judge_conformance(output):
    """Suite, rules and the first kernel of a report in JSON."""
    try:
        report = json.loads(output)
    except ValueError:
        return None
    failures = report["failures"]
    if not failures:
        return None
    rules = sorted({rule for failure in failures for rule in re.findall(r"\bR[1-6]\b", failure["text"])})
    what = " ".join(rules) or failures[0]["text"][:60]
    where = f" {failures[0]['case'].split()[0]}" if report["suite"] in ("bits", "catalogue") else ""
    return f"{report['suite']}{where}: {what} ({failures[0]['kernel']})"


def judge_gtest(output):
    """The test that failed, or the one that was running when the program died."""
    failed = re.search(r"^\[  FAILED  \] ([\w/.]+)", output, re.MULTILINE)
    running = re.findall(r"^\[ RUN      \] ([\w/.]+)", output, re.MULTILINE)
    name = failed[1] if failed else running[-1] if running else None
    return f"unit {name}" if name else None


def judge_stress(output):
    """The first case that failed."""
    failed = re.search(r"^failed: (.*)$", output, re.MULTILINE)
    return f"stress: {failed[1]}" if failed else None


def sass_complaint(mutant, objects):
    """What tools/check_sass.py says of the first bad object, of mutants that it ought to see; else None."""
    if "sass" not in mutant.rules.split():
        return None
    script = pathlib.Path(__file__).with_name("check_sass.py")
    done = subprocess.run([sys.executable, "-B", script, *objects], capture_output=True, text=True)
    if "no cuobjdump" in done.stdout:
        raise RuntimeError(done.stdout.strip())
    # "check_sass.py: FUNCTION: what is wrong"
    return f"sass: {done.stdout.splitlines()[0].split(': ', 2)[-1]}"[:100] if done.returncode != 0 else None


# ---- what is being done ----


class Progress:
    """Lines of a log; on a terminal also one below them that is written over: how far, how long yet, what."""

    def __init__(self, stream):
        self.stream = stream
        self.is_terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.total, self.done, self.started = 0, 0, time.monotonic()

    def start(self, total):
        self.total, self.done, self.started = total, 0, time.monotonic()

    def finish_one(self):
        self.done += 1

    def say(self, line):
        self.stream.write(("\r\033[K" if self.is_terminal else "") + line + "\n")
        self.stream.flush()

    def show(self, text):
        if not self.is_terminal:
            return
        count = f"[{self.done}/{self.total}{self.time_left()}] " if self.total else ""
        self.stream.write("\r\033[K" + (count + text)[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()

    def time_left(self):
        if self.done == 0:
            return ""
        seconds = (time.monotonic() - self.started) / self.done * (self.total - self.done)
        return f", about {seconds / 60:.0f} min left"


# ---- files of mutants ----


def read_mutant(path):
    """The mutant of a file; ValueError where its head is not whole."""
    if not re.fullmatch(NAME, path.stem):
        raise ValueError(f"{path.name}: the name must be NNN-what-it-does.mutant")
    head, _, body = path.read_text(encoding="utf-8").partition("\n\n")
    fields = {}
    for line in head.splitlines():
        key, _, value = line.partition(": ")
        if key not in FIELDS + OPTIONAL or key in fields or not value.strip():
            raise ValueError(f"{path.name}: '{line}' is no line of a head of {', '.join(FIELDS + OPTIONAL)}")
        fields[key] = value.strip()
    if missing := [key for key in FIELDS if key not in fields]:
        raise ValueError(f"{path.name}: its head lacks {', '.join(missing)}")
    try:
        return Mutant(path.stem, edits=mutant_edits.parse(body), **fields)
    except mutant_edits.Wrong as wrong:
        raise ValueError(f"{path.name}: {wrong}") from None


def read_mutants(folder):
    """(mutants, findings about files that are none)"""
    mutants, findings = [], []
    for path in sorted(folder.glob("*.mutant")):
        try:
            mutants.append(read_mutant(path))
        except ValueError as wrong:
            findings.append(str(wrong))
    numbers = [mutant.name[:3] for mutant in mutants]
    findings += [f"number {number} appears twice" for number in sorted(set(numbers)) if numbers.count(number) > 1]
    return mutants, findings


# ---- programs ----


def call(command, seconds, folder, environment=None):
    """(exit status, standard output, standard error); the status is None where time ran out."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
        return process.returncode, output, errors
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return (None, *process.communicate())
    finally:
        if process.poll() is None:  # whoever stops this program stops what it started
            os.killpg(process.pid, signal.SIGKILL)


def verdict(stage, limit, status, output, errors):
    """None where the stage passed, else what failed."""
    if status == 0:
        return None
    by = stage.judge(output)
    if status is None:
        return f"{stage.name}: time limit of {limit:.0f} s" + (f" ({by})" if by else "")
    if status < 0:
        running = re.search(r"while running:\n\s*(.*)", errors)
        by = by or (running[1] if running else None)
        return f"{stage.name}: {signal.Signals(-status).name}" + (f" ({by})" if by else "")
    return by or f"{stage.name}: exit status {status}"


# ---- the tree ----


def write_if_other(path, data, mode):
    """Leaves alone a file whose bytes are right: its time decides what is built again."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


class Tree:
    """A copy of the sources and, where a tree usually has it, its build. `configure` and `build` are commands that lack
    their last arguments."""

    def __init__(self, root, copy, binaries, configure, build):
        self.root, self.copy, self.binaries = root, copy, copy / "build" / binaries
        self.configure_command, self.build_command = configure, build

    def restore(self):
        wanted = checklib.tracked_files(self.root)
        for path in wanted:
            source = self.root / path
            write_if_other(self.copy / path, source.read_bytes(), source.stat().st_mode)
        for path in set(checklib.tracked_files(self.copy)) - set(wanted):
            (self.copy / path).unlink()

    def configure(self):
        self.restore()
        self.binaries.mkdir(parents=True, exist_ok=True)
        return self.call([*self.configure_command, "-S", str(self.copy), "-B", str(self.binaries)], BUILD_SECONDS)

    def cuda_objects(self):
        return sorted(self.binaries.glob("src/CMakeFiles/headrace_objects.dir/backends/cuda/**/*.cu.o"))

    def build(self, target):
        return self.call([*self.build_command, target], BUILD_SECONDS)

    def call(self, command, seconds):
        return call(command, seconds, self.binaries)


class Runner:
    """`first`: the stages of each kernel's own; `everything`: all stages, the quick ones before the long ones."""

    def __init__(self, tree, first, everything, progress):
        self.tree, self.first, self.everything, self.progress = tree, first, everything, progress
        self.limits = {}  # of a program's stages, in seconds

    def baseline(self):
        """All stages without a mutant; RuntimeError where one fails."""
        self.tree.restore()
        for stage in self.everything:
            self.progress.show(f"without a mutant: {stage.name}")
            if wrong := self.build_failure(stage.target):
                raise RuntimeError(f"{stage.target} does not build without a mutant: {wrong}")
            started = time.monotonic()
            if by := self.failure(stage, BUILD_SECONDS):
                raise RuntimeError(f"{stage.name} fails without a mutant: {by}")
            seconds = time.monotonic() - started
            limit = SECONDS_MORE + SLOWER * seconds
            self.limits[stage.program] = max(limit, self.limits.get(stage.program, 0))
            self.progress.say(f"without a mutant: {stage.name} passes, {seconds:.0f} s")

    def build_failure(self, target):
        status, output, errors = self.tree.build(target)
        if status == 0:
            return None
        wrong = re.search(r".*\berror:.*", output + errors)
        return wrong[0].strip() if wrong else f"exit status {status}"

    def failure(self, stage, limit):
        """None where the stage passes, else what failed."""
        command = [str(self.tree.binaries / stage.program), *stage.arguments]
        return verdict(stage, limit, *self.tree.call(command, limit))

    def run(self, mutant):
        started = time.monotonic()
        status, by = self.plant(mutant)
        return Outcome(mutant, status, by, time.monotonic() - started)

    def plant(self, mutant):
        self.tree.restore()
        if wrong := mutant_edits.plant(self.tree.copy, mutant.edits):
            return "does not apply", " ".join(wrong.split())
        own = self.first[mutant.kernel]
        built = set()
        for stage in [*own, *(stage for stage in self.everything if stage not in own)]:
            if stage.target not in built:
                self.progress.show(f"{mutant.name}: building {stage.target}")
                if wrong := self.build_failure(stage.target):
                    return "does not build", wrong
                built.add(stage.target)
                if by := sass_complaint(mutant, self.tree.cuda_objects()):
                    return "killed", by
            self.progress.show(f"{mutant.name}: {stage.name}")
            if by := self.failure(stage, self.limits[stage.program]):
                return "killed", by
        return "survived", ""
