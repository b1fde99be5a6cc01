#!/usr/bin/env python3
"""Writes sampling.json: random logits and the tokens that the logits processors of `transformers` keep.

    pip install torch transformers
    python tests/golden/make_sampling.py > tests/golden/sampling.json

Logits are multiples of 1/64. Cases with top_p have no ties: transformers uses torch.sort for top_p, which does not
specify the order of ties.
"""

import json
import random
import sys
from importlib.metadata import version

import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

NUM_CASES = 200
VOCAB_SIZES = [2, 5, 20, 33, 64, 70]


def random_options(rng, size):
    options = {"temperature": rng.choice([0.3, 0.7, 1.0, 1.0, 1.5, 4.0])}
    if rng.random() < 0.5:
        options["repetition_penalty"] = rng.choice([0.8, 1.1, 1.3, 2.0])
    if rng.random() < 0.5:
        options["top_k"] = rng.randint(1, size + 2)
    if rng.random() < 0.5:
        options["top_p"] = round(rng.uniform(0.01, 0.99), 3)
    if rng.random() < 0.4:
        options["min_p"] = round(rng.uniform(0.0, 0.4), 3)
    return options


def apply(options, history, logits):
    ids = torch.tensor([history], dtype=torch.long)
    scores = torch.tensor([logits], dtype=torch.float32) / 64
    processors = [TemperatureLogitsWarper(options["temperature"])]
    if "repetition_penalty" in options:
        processors.insert(0, RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    if "top_k" in options:
        processors.append(TopKLogitsWarper(options["top_k"]))
    if "top_p" in options:
        processors.append(TopPLogitsWarper(options["top_p"]))
    if "min_p" in options:
        processors.append(MinPLogitsWarper(options["min_p"]))
    for processor in processors:
        scores = processor(ids, scores)
    kept = torch.isfinite(scores[0]).nonzero().flatten().tolist()
    return kept, torch.softmax(scores[0].double(), 0)[kept].tolist()


def main():
    rng = random.Random(7)
    cases = []
    for _ in range(NUM_CASES):
        size = rng.choice(VOCAB_SIZES)
        options = random_options(rng, size)
        spread = rng.choice([100, 300, 600])
        if "top_p" in options:
            logits = rng.sample(range(-spread, spread), size)
        else:
            logits = [rng.randint(-spread, spread) // 32 * 32 for _ in range(size)]
        history = [rng.randrange(size) for _ in range(rng.randint(1, 6))]
        kept, probabilities = apply(options, history, logits)
        if "top_p" in options and len(set(logits)) != size:
            continue
        cases.append({"logits": logits, "history": history, "options": options, "kept": kept,
                      "probabilities": [float(f"{p:.8g}") for p in probabilities]})  # fmt: skip
    json.dump({"transformers": version("transformers"), "cases": cases}, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
