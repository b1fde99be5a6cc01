#!/usr/bin/env python3
"""Compares our greedy answers with transformers in float32 and llama.cpp (tests/golden/smollm2_greedy.json).

An answer may diverge from the reference's only where the reference's two best tokens are closer than the numerical
noise: the largest difference of our logits and of llama.cpp's from the reference's at that step and a few before it. At
most 4 prompts may diverge, 0 in exact mode. The exit code is 1 if a rule is broken."""

import argparse
import json
import pathlib
import sys

import numpy
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "peers"))

import gguf_llama  # noqa: E402
import headrace_abi  # noqa: E402
import headrace_model  # noqa: E402

MAX_DIVERGING = {"normal": 4, "exact": 0}
NUM_BEFORE = 8  # steps before the divergence that also count for the noise


def first_difference(tokens, expected):
    pairs = enumerate(zip(tokens, expected))
    same = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(tokens), len(expected)))
    return None if tokens == expected else same


def own_noise(network, answer, step, ours):
    """Largest difference of our logits (a list of rows) from the reference's at the step and before it."""
    sequence = answer["prompt_tokens"] + answer["tokens"][:step]
    with torch.no_grad():
        reference = network(torch.tensor([sequence])).logits[0].numpy()
    steps = range(max(0, step - NUM_BEFORE), step + 1)
    return max(float(numpy.abs(ours[i] - reference[len(answer["prompt_tokens"]) - 1 + i]).max()) for i in steps)


def peer_noise(answer, step):
    """llama.cpp's noise, while its answer equals the reference's."""
    near = answer["llama_cpp_noise"][max(0, step - NUM_BEFORE) : step + 1]
    return max(near or answer["llama_cpp_noise"])


def compare(options, golden, network):
    model = headrace_model.Model(headrace_abi.Library(options.library), options.model, options.threads, options.exact)
    session = headrace_model.Session(model, network.config.vocab_size)
    num_diverging, broken = 0, []
    for answer in golden["answers"]:
        steps = list(session.greedy(answer["prompt_tokens"], len(answer["tokens"]), set(golden["end_tokens"])))
        tokens = [token for token, _ in steps]
        step, peer_step = first_difference(tokens, answer["tokens"]), answer["llama_cpp_diverges_at"]
        line = f"{answer['prompt'][:48]:50} smallest gap {min(answer['gaps']):.3f}  llama.cpp "
        line += f"{'same' if peer_step is None else 'diverges at ' + str(peer_step):16} ours "
        if step is None:
            print(line + "same")
            continue
        num_diverging += 1
        noise, other = own_noise(network, answer, step, [logits for _, logits in steps]), peer_noise(answer, step)
        gap = answer["gaps"][step]
        print(line + f"diverges at {step}: gap {gap:.4f}, noise {noise:.4f}, llama.cpp's {other:.4f}")
        if gap >= min(noise, other):
            broken.append(f"{answer['prompt']!r}: diverges from the reference at {step}, which noise does not explain")
    session.close()
    model.close()
    return num_diverging, broken


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--golden", type=pathlib.Path, default=ROOT / "tests" / "golden" / "smollm2_greedy.json")
    parser.add_argument("--library", help="libheadrace.so (HEADRACE_LIBRARY or build/*/src)")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(options.threads)
    golden = json.loads(options.golden.read_text())
    network, _ = gguf_llama.load(options.model)
    num_diverging, broken = compare(options, golden, network)
    most = MAX_DIVERGING["exact" if options.exact else "normal"]
    peer = sum(answer["llama_cpp_diverges_at"] is not None for answer in golden["answers"])
    total = len(golden["answers"])
    print(f"{num_diverging} of {total} answers diverge from the reference (at most {most} may), {peer} of llama.cpp's")
    if num_diverging > most:
        broken.append(f"{num_diverging} answers diverge from the reference")
    print("\n".join(f"broken: {rule}" for rule in broken) or "no rule broken")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except headrace_abi.Error as error:
        print(f"compare_greedy: {error}", file=sys.stderr)
        sys.exit(1)
