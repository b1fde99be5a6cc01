#!/usr/bin/env python3
"""The lengths of ShareGPT's conversations as a trace for serving_cuda.py and headrace bench engine --trace: tokens of
the first turn and of its answer, chosen as vLLM's benchmark does (4 to 1024 tokens of prompt, at least 4 of answer, at
most 2048 in all; in an order drawn by --seed)."""

import argparse
import json
import pathlib
import random

import headrace


def conversations(path):
    """First turn and answer of each. A file that was cut off ends at its last whole conversation."""
    text = path.read_text()
    try:
        items = json.loads(text)
    except json.JSONDecodeError:
        items = json.loads(text[: text.rindex("\n  },\n")] + "\n  }\n]")
    for item in items:
        turns = item["conversations"]
        if len(turns) >= 2:
            yield turns[0]["value"], turns[1]["value"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--file", type=pathlib.Path, required=True, help="ShareGPT's JSON")
    parser.add_argument("--model", required=True, help="GGUF file whose tokenizer counts")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    model = headrace.LLM(options.model)
    pairs = list(conversations(options.file))
    random.Random(options.seed).shuffle(pairs)
    requests = []
    for texts in pairs:
        prompt, answer = (len(model.tokenize(text, bos=False)) for text in texts)
        if 4 <= prompt <= 1024 and answer >= 4 and prompt + answer <= 2048:
            requests.append({"timestamp": 0, "input_length": prompt, "output_length": answer})
        if len(requests) == options.requests:
            break
    options.out.write_text("".join(json.dumps(request) + "\n" for request in requests))


if __name__ == "__main__":
    main()
