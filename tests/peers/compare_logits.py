#!/usr/bin/env python3
"""Compares our logits of a text, in both modes, and llama.cpp's with transformers in float32.

    headrace perplexity -m MODEL -f tests/golden/text/alice.txt -w 512 --logits-out ours.f32
    headrace perplexity -m MODEL -f tests/golden/text/alice.txt -w 512 --exact --logits-out exact.f32
    compare_logits.py --ours ours.f32 --ours-exact exact.f32

The reference's and llama.cpp's logits are those of make_model_golden.py in its work folder. The exit code is 1 if a
rule is broken."""

import argparse
import json
import pathlib
import sys

import numpy

import logit_rules

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = (
    ("mean_kl", "mean KL", "{:.3e}"),
    ("max_kl", "max KL", "{:.3e}"),
    ("top1_agreement", "top-1 agreement", "{:.4%}"),
    ("perplexity", "perplexity", "{:.4f}"),
    ("max_logit_difference", "max |logit difference|", "{:.3e}"),
    ("rms_logit_difference", "rms logit difference", "{:.3e}"),
)
# Exact mode does the reference's arithmetic in another order: sums differ only by float32 roundings.
EXACT_MEAN_KL, EXACT_MAX_KL = 1e-8, 1e-6
PERPLEXITY_SHARE = 0.005


def read_logits(path, num_tokens, vocab_size):
    logits = numpy.memmap(path, dtype="<f4", mode="r")
    if logits.size != num_tokens * vocab_size:
        raise SystemExit(f"{path}: {logits.size} values, expected {num_tokens} tokens x {vocab_size}")
    return logits.reshape(num_tokens, vocab_size)


def excess(columns):
    """Difference of our mean KL to llama.cpp's, and its standard error over positions."""
    difference = columns["ours"]["divergences"] - columns["llama.cpp"]["divergences"]
    return float(difference.mean()), float(difference.std() / len(difference) ** 0.5)


def broken_rules(columns, reference):
    """The guarantees: exact mode equals the reference; normal mode is at least as close to it as llama.cpp."""
    exact, ours, peer = (columns.get(name) for name in ("exact", "ours", "llama.cpp"))
    if exact and (exact["mean_kl"] > EXACT_MEAN_KL or exact["max_kl"] > EXACT_MAX_KL):
        yield f"exact: KL above mean {EXACT_MEAN_KL:g} or max {EXACT_MAX_KL:g}"
    if ours and peer:
        if ours["mean_kl"] > peer["mean_kl"]:
            yield "ours: mean KL above llama.cpp's"
        if ours["top1_agreement"] < peer["top1_agreement"]:
            yield "ours: top-1 agreement below llama.cpp's"
        if ours["max_kl"] > 2 * peer["max_kl"]:
            yield "ours: max KL above twice llama.cpp's"
        if ours["perplexity"] > (1 + PERPLEXITY_SHARE) * peer["perplexity"]:
            yield f"ours: perplexity more than {PERPLEXITY_SHARE:.1%} above llama.cpp's"
    for name, column in (("exact", exact), ("ours", ours)):
        if column and abs(column["perplexity"] / reference - 1) > 2 * PERPLEXITY_SHARE:
            yield f"{name}: perplexity more than {2 * PERPLEXITY_SHARE:.1%} off the reference's"


def table(columns, reference):
    names = list(columns)
    yield f"{'':24}" + "".join(f"{name:>16}" for name in names)
    for key, title, pattern in ROWS:
        yield f"{title:24}" + "".join(f"{pattern.format(columns[name][key]):>16}" for name in names)
    share = "".join(f"{columns[name]['perplexity'] / reference - 1:>+16.3%}" for name in names)
    yield f"{'perplexity to fp32':24}" + share


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = ROOT / "build" / "model-golden"
    parser.add_argument("--ours", type=pathlib.Path, help="[positions, vocab] float32")
    parser.add_argument("--ours-exact", type=pathlib.Path, help="the same in exact mode")
    parser.add_argument("--tokens", type=pathlib.Path, help="int32, output of headrace perplexity --tokens-out")
    parser.add_argument("--golden", type=pathlib.Path, default=ROOT / "tests" / "golden" / "smollm2_logits.json")
    parser.add_argument("--reference", type=pathlib.Path, default=work / "reference.f32")
    parser.add_argument("--llama-cpp", type=pathlib.Path, default=work / "llama_cpp.f32")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser.parse_args()


def main():
    options = parse_options()
    golden = json.loads(options.golden.read_text())
    tokens, window = golden["tokens"], golden["window"]
    if options.tokens and numpy.fromfile(options.tokens, dtype="<i4").tolist() != tokens:
        print("compare_logits: the tokens of the text differ from the fixture's")
        return 1
    reference = read_logits(options.reference, len(tokens), golden["vocab_size"])
    perplexity = logit_rules.perplexity(logit_rules.next_logprobs(reference, tokens, window))
    sides = {"exact": options.ours_exact, "ours": options.ours, "llama.cpp": options.llama_cpp}
    columns = {}
    for name, path in sides.items():
        if path:
            logits = read_logits(path, len(tokens), golden["vocab_size"])
            divergences, numbers = logit_rules.compare(logits, reference, tokens, window)
            columns[name] = {"divergences": divergences, **numbers}
    broken = list(broken_rules(columns, perplexity))
    mean, error = excess(columns) if options.ours else (None, None)
    for column in columns.values():
        del column["divergences"]
    if options.format == "json":
        result = {"reference_perplexity": perplexity, "columns": columns, "broken": broken}
        print(json.dumps(result | {"mean_kl_excess": mean, "mean_kl_excess_error": error}, indent=2))
    else:
        print(f"{len(tokens)} positions in windows of {window}; perplexity of the reference {perplexity:.4f}")
        print("\n".join(table(columns, perplexity)))
        if options.ours:
            print(f"mean KL of ours is {mean:.1e} above llama.cpp's, standard error {error:.1e}")
        print("\n".join(f"broken: {rule}" for rule in broken) or "no rule broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
