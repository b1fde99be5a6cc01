#!/usr/bin/env python3
"""The model part of `./dev test --peers`: regenerates the fixtures, compares them with those of the tree, then compares
our program and library with the reference and llama.cpp."""

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
# Allows another order of float32 sums on other machines or library versions.
LOGPROB_TOLERANCE = 2e-3
TINY_TOLERANCE = 1e-4  # relative to the largest logit

problems = []


def say(text):
    print(f"== {text}", flush=True)


def script(name, *arguments):
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    if subprocess.run(command).returncode:
        problems.append(f"{name} failed")


def check_tiny():
    say("tiny models, regenerated")
    folder = WORK / "tiny"
    script("make_tiny_models.py", "--out", folder)
    for model in json.loads((GOLDEN / "tiny" / "tiny.json").read_text())["models"]:
        if not filecmp.cmp(GOLDEN / "tiny" / model["file"], folder / model["file"], shallow=False):
            problems.append(f"{model['file']}: differs from the file in the tree")
        tree, again = (numpy.fromfile(where / model["logits"], "<f4") for where in (GOLDEN / "tiny", folder))
        if tree.size != again.size or numpy.abs(tree - again).max() > TINY_TOLERANCE * model["largest_logit"]:
            problems.append(f"{model['logits']}: logits differ from the tree's")


def both(name):
    return (json.loads((folder / name).read_text()) for folder in (GOLDEN, WORK))


def check_golden(model):
    say("logits and greedy answers by transformers and llama.cpp, regenerated")
    script("make_model_golden.py", "--model", model, "--out", WORK, "--work", WORK)
    tree, again = both("smollm2_logits.json")
    if tree["meta"]["model_sha256"] != again["meta"]["model_sha256"]:
        problems.append(f"{model}: not the model file of the fixtures")
        return
    difference = numpy.abs(numpy.subtract(tree["next_logprobs"], again["next_logprobs"])).max()
    print(f"log-probabilities differ by at most {difference:.1e} from the tree's")
    if tree["tokens"] != again["tokens"] or difference > LOGPROB_TOLERANCE:
        problems.append("smollm2_logits.json: values differ from the tree's")
    tree, again = both("smollm2_greedy.json")
    answers = [{a["prompt"]: a["tokens"] for a in result["answers"]} for result in (tree, again)]
    shared = answers[0].keys() & answers[1].keys()
    different = [prompt for prompt in shared if answers[0][prompt] != answers[1][prompt]]
    print(f"{len(shared)} of {len(answers[0])} prompts chosen again, {len(different)} answers differ from the tree's")
    if different:
        problems.append(f"smollm2_greedy.json: different answers to {different}")


def runs_models(program):
    return program.exists() and not subprocess.run([program, "perplexity", "--help"], capture_output=True).returncode


def check_ours(model, program, threads):
    say("comparison of ours")
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
    parser.add_argument("--program", type=pathlib.Path, required=True, help="headrace program")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    check_tiny()
    if not options.model.exists():
        print(f"skipped: {options.model} does not exist; it is needed to compare a real model")
    else:
        check_golden(options.model)
        if runs_models(options.program):
            check_ours(options.model, options.program, options.threads)
        else:
            print(f"skipped: {options.program} was built without models: ours was not compared")
    print("\n".join(f"wrong: {problem}" for problem in problems) or "models: every comparison passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
