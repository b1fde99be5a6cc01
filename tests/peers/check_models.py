#!/usr/bin/env python3
"""What `./dev test --peers` does with models: makes the fixtures again, compares them with those of the tree, then runs
our program and library beside the reference and llama.cpp."""

import argparse
import filecmp
import json
import pathlib
import subprocess
import sys

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).parent
GOLDEN = ROOT / "tests" / "golden"
WORK = ROOT / "build" / "model-golden"
# float32 sums in another order, as another machine's or version's libraries have them.
LOGPROB_TOLERANCE = 2e-3
TINY_TOLERANCE = 1e-4  # of the largest logit

problems = []


def say(text):
    print(f"== {text}", flush=True)


def script(name, *arguments):
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    if subprocess.run(command).returncode:
        problems.append(f"{name} failed")


def check_tiny():
    say("tiny models, made again")
    folder = WORK / "tiny"
    script("make_tiny_models.py", "--out", folder)
    for model in json.loads((GOLDEN / "tiny" / "tiny.json").read_text())["models"]:
        if not filecmp.cmp(GOLDEN / "tiny" / model["file"], folder / model["file"], shallow=False):
            problems.append(f"{model['file']}: another file than in the tree")
        tree, again = (numpy.fromfile(where / model["logits"], "<f4") for where in (GOLDEN / "tiny", folder))
        if tree.size != again.size or numpy.abs(tree - again).max() > TINY_TOLERANCE * model["largest_logit"]:
            problems.append(f"{model['logits']}: other logits than in the tree")


def both(name):
    return (json.loads((folder / name).read_text()) for folder in (GOLDEN, WORK))


def check_golden(model):
    say("logits and greedy answers by transformers and llama.cpp, made again")
    script("make_model_golden.py", "--model", model, "--out", WORK, "--work", WORK)
    tree, again = both("smollm2_logits.json")
    if tree["meta"]["model_sha256"] != again["meta"]["model_sha256"]:
        problems.append(f"{model}: another file than that of the fixtures")
        return
    difference = numpy.abs(numpy.subtract(tree["next_logprobs"], again["next_logprobs"])).max()
    print(f"log-probabilities differ by at most {difference:.1e} from the tree's")
    if tree["tokens"] != again["tokens"] or difference > LOGPROB_TOLERANCE:
        problems.append("smollm2_logits.json: other values than in the tree")
    tree, again = both("smollm2_greedy.json")
    answers = [{a["prompt"]: a["tokens"] for a in result["answers"]} for result in (tree, again)]
    shared = answers[0].keys() & answers[1].keys()
    different = [prompt for prompt in shared if answers[0][prompt] != answers[1][prompt]]
    print(f"{len(shared)} of {len(answers[0])} prompts chosen again, {len(different)} answers differ from the tree's")
    if different:
        problems.append(f"smollm2_greedy.json: other answers to {different}")


def runs_models(program):
    return program.exists() and not subprocess.run([program, "perplexity", "--help"], capture_output=True).returncode


def check_ours(model, program, threads):
    say("ours beside them")
    paths = {}
    for mode, flags in (("normal", []), ("exact", ["--exact"])):
        paths[mode] = WORK / f"{mode}.f32"
        command = [program, "perplexity", "-m", model, "-f", GOLDEN / "text" / "alice.txt", "-w", "512", "-t", threads]
        command += ["--logits-out", paths[mode], "--tokens-out", WORK / "tokens.i32", *flags]
        if subprocess.run(list(map(str, command))).returncode:
            problems.append(f"headrace perplexity failed in {mode} mode")
            return
    script("compare_logits.py", "--ours", paths["normal"], "--ours-exact", paths["exact"],
           "--tokens", WORK / "tokens.i32")  # fmt: skip
    for flags in ([], ["--exact"]):
        say(f"greedy answers {' '.join(flags)}")
        script("compare_greedy.py", "--model", model, "--threads", threads, *flags)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="headrace")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    check_tiny()
    if not options.model.exists():
        print(f"skipped: {options.model} is not there; with it, a real model is compared")
    else:
        check_golden(options.model)
        if runs_models(options.program):
            check_ours(options.model, options.program, options.threads)
        else:
            print(f"skipped: {options.program} runs no models: nothing of ours was compared")
    print("\n".join(f"wrong: {problem}" for problem in problems) or "models: every comparison passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
