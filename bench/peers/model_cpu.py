#!/usr/bin/env python3
"""Headrace compared with llama.cpp on the CPU: one model file, the same tests and threads, alternating rounds.
bench/peers/README.md has the protocol."""

import argparse
import datetime
import json
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time

import gguf

import llama_cpp_side
import machine
import report

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTLE_SECONDS = 0.3  # lets the threads of the other side go to sleep
ATTENTIONS = ("flash", "plain")
COLUMNS = (
    ("case", "test", "{}"),
    ("threads", "threads", "{:d}"),
    ("headrace", "headrace tokens/s", "{:.1f}"),
    ("headrace_stddev", "+-", "{:.1f}"),
    ("llama_cpp", "llama.cpp tokens/s", "{:.1f}"),
    ("llama_cpp_stddev", "+-", "{:.1f}"),
    ("llama_cpp_attention", "attention", "{}"),
    ("ratio", "headrace/llama.cpp", "{:.2f}"),
    ("headrace_percent_read", "headrace % read", "{:.0f}"),
    ("llama_cpp_percent_read", "llama.cpp % read", "{:.0f}"),
    ("read_gbytes", "read GB/s", "{:.1f}"),
)
FORMATS = report.formats(COLUMNS, "headrace/llama.cpp")


class Error(Exception):
    pass


# ---- Headrace: one process per round; parses its JSON ----


def run_headrace(options, threads, has_ceilings=False):
    """(test -> tokens/s, the program's notes, read bandwidth in GB/s or None)."""
    command = [str(options.program), "bench", "model", "-m", str(options.model), "-p", str(options.prompt)]
    command += ["-n", str(options.answer), "-d", str(options.depth), "-t", str(threads), "-r", str(options.reps)]
    command += ["--format", "json"] + ([] if has_ceilings else ["--no-ceilings"])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Error(f"{shlex.join(command)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    result = json.loads(done.stdout)
    rates = {row["test"]: row["tokens_per_s_mean"] for row in result["rows"]}
    read = [row["read_gbytes_per_s"] for row in result["rows"] if row.get("read_gbytes_per_s")]
    return rates, result.get("meta", {}), max(read, default=None)


# ---- llama.cpp: in this process, with and without flash attention ----


class Llama:
    def __init__(self, options):
        self.options = options
        self.model = llama_cpp_side.Model(options.model)
        self.prompt = llama_cpp_side.random_tokens(self.model, options.prompt, seed=0)
        self.answer = llama_cpp_side.random_tokens(self.model, options.answer, seed=1)
        self.before = llama_cpp_side.random_tokens(self.model, options.depth, seed=2)

    def run(self, threads, attention):
        """test -> tokens/s, the mean of the repetitions after a warm-up."""
        o = self.options
        size = o.depth + max(o.prompt, o.answer)
        rates = {}
        with llama_cpp_side.context(self.model, threads, attention, size) as context:
            tests = {f"pp{o.prompt}": (context.prefill_seconds, self.prompt)} if o.prompt else {}
            if o.answer:
                tests[f"tg{o.answer}"] = (context.generate_seconds, self.answer)
            for name, (call, tokens) in tests.items():
                call(tokens[:16], self.before)
                seconds = [call(tokens, self.before) for _ in range(o.reps)]
                rates[name] = statistics.mean(len(tokens) / s for s in seconds)
        return rates


def bytes_per_token(path):
    """Weight bytes read per token: all, except an embedding that is not tied to the output matrix."""
    tensors = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    return sum(tensors.values()) - ("output.weight" in tensors) * tensors["token_embd.weight"]


def run_rounds(options, llama, threads):
    rounds = {"headrace": [], **{name: [] for name in ATTENTIONS}}
    read, notes = None, {}
    for index in range(options.rounds):
        machine.progress(f"{threads} threads, round {index + 1} of {options.rounds}")
        time.sleep(SETTLE_SECONDS)
        if options.program:
            rates, notes, measured = run_headrace(options, threads, has_ceilings=index == 0)
            rounds["headrace"].append(rates)
            read = measured or read
        for attention in ATTENTIONS:
            time.sleep(SETTLE_SECONDS)
            rounds[attention].append(llama.run(threads, attention))
    machine.progress("")
    return rounds, notes, read


def side(rounds, name, test):
    """(median, standard deviation) of the rounds' tokens/s; (None, None) if nothing ran."""
    rates = [rates[test] for rates in rounds[name]]
    if not rates:
        return None, None
    return statistics.median(rates), statistics.pstdev(rates)


def row_of(rounds, test, threads, read, num_bytes):
    ours, ours_stddev = side(rounds, "headrace", test)
    best = max(ATTENTIONS, key=lambda name: side(rounds, name, test)[0])
    theirs, theirs_stddev = side(rounds, best, test)
    row = {
        "case": test,
        "group": test[:2],
        "threads": threads,
        "headrace": ours,
        "headrace_stddev": ours_stddev,
        "llama_cpp": theirs,
        "llama_cpp_stddev": theirs_stddev,
        "llama_cpp_attention": best,
        "ratio": ours / theirs if ours else None,
        "rounds": {name: [rates[test] for rates in values] for name, values in rounds.items()},
    }
    if test.startswith("tg") and read:
        row["read_gbytes"] = read
        row["headrace_percent_read"] = ours * num_bytes * 1e-9 / read * 100
        row["llama_cpp_percent_read"] = theirs * num_bytes * 1e-9 / read * 100
    return row


def meta_of(options, llama, notes, num_bytes):
    return {
        "benchmark": "peers/model_cpu",
        "command": shlex.join(["bench/peers/model_cpu.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": notes.get("machine", machine.cpu_name()),
        "operating_system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "revision": machine.revision() or "unknown",
        "build": notes.get("build", "headrace did not run"),
        **llama_cpp_side.versions(),
        "model": options.model.name,
        "model_description": llama.model.description,
        "bytes_per_token": num_bytes,
        "depth": options.depth,
        "rounds": options.rounds,
        "reps": options.reps,
    }


def find_program():
    found = sorted(ROOT.glob("build/*/cli/headrace"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def numbers(text):
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError("must be a comma list of numbers from 1")
    return [int(part) for part in text.split(",")]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("-m", "--model", type=pathlib.Path, default=llama_cpp_side.cached_model_path())
    parser.add_argument("-t", "--threads", type=numbers, default=[1, 2], help="comma list")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="prompt length in tokens; 0: none")
    parser.add_argument("-n", "--answer", type=int, default=128, help="generated tokens; 0: none")
    parser.add_argument("-d", "--depth", type=int, default=0, help="tokens in the context before each test")
    parser.add_argument("-r", "--reps", type=int, default=2, help="runs of each test per round")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds of each side")
    parser.add_argument("--program", type=pathlib.Path, default=find_program(), help="headrace program")
    parser.add_argument("--llama-cpp-only", action="store_true", help="run only llama.cpp")
    parser.add_argument("--format", choices=sorted(FORMATS), default="text")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON result to this file")
    options = parser.parse_args()
    if options.llama_cpp_only:
        options.program = None
    elif options.program is None:
        parser.error("no headrace program under build: build it, or pass --program")
    return options


def main():
    options = parse_options()
    if not options.model.exists():
        raise Error(f"{options.model}: file not found; pass --model")
    llama = Llama(options)
    num_bytes = bytes_per_token(options.model)
    rows, notes = [], {}
    for threads in options.threads:
        rounds, notes, read = run_rounds(options, llama, threads)
        rows += [row_of(rounds, test, threads, read, num_bytes) for test in rounds["flash"][0]]
    result = {"meta": meta_of(options, llama, notes, num_bytes), "rows": rows, "summary": report.summary_of(rows)}
    sys.stdout.write(FORMATS[options.format](result))
    if options.out:
        options.out.write_text(report.as_json(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Error, llama_cpp_side.Error) as error:
        print(f"model_cpu: {error}", file=sys.stderr)
        sys.exit(1)
