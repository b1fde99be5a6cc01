#!/usr/bin/env python3
"""How well a model repeats a passage of its prompt, by the type of its KV cache.

    python bench/repetition.py --model FILE --text FILE --out RESULT.json

The task of SparQ's paper (Ribar et al., 2024): the prompt is a chunk of a text and then, once more, a fragment of it.
A model that finds the fragment in its cache goes on as the text does. The score of a prompt is the number of characters
until the first difference, of at most those that it wrote. Needs no labels, and what a cache loses shows at once.
"""

import argparse
import datetime
import json
import pathlib
import platform
import random
import statistics
import sys

import headrace

TYPES = ("f16", "int8", "fp8", "int4", "kivi4", "kivi2")


def cases(text, count, chunk_chars, fragment_chars):
    """(prompt, how the text goes on) of chunks one after the other, each with a fragment at a random place."""
    draw = random.Random(1)
    for i in range(count):
        chunk = text[i * chunk_chars : (i + 1) * chunk_chars]
        if len(chunk) < chunk_chars:
            raise SystemExit(f"--text: {len(text)} characters, too few for {count} chunks of {chunk_chars}")
        first = chunk.index(" ", draw.randrange(chunk_chars // 2)) + 1
        end = chunk.index(" ", first + fragment_chars)
        yield f"{chunk}\n\n{chunk[first:end]}", chunk[end:]


def common_prefix(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def scores_of(model, kv_type, args, all_cases):
    stored = {} if kv_type == "f16" else {"k_type": kv_type, "v_type": kv_type}
    llm = headrace.LLM(model, num_threads=args.threads, **stored)
    params = headrace.SamplingParams(max_tokens=args.tokens)
    scores = []
    for i, (prompt, expected) in enumerate(all_cases):
        scores.append(common_prefix(llm.generate(prompt, params).text, expected))
        print(f"\r{kv_type}: {i + 1}/{len(all_cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return scores


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--types", default=",".join(TYPES), help=f"of keys and values [{','.join(TYPES)}]")
    parser.add_argument("--count", type=int, default=40, help="prompts [40]")
    parser.add_argument("--chunk-chars", type=int, default=4000, help="of the text in a prompt [4000]")
    parser.add_argument("--fragment-chars", type=int, default=60, help="at least, of the fragment [60]")
    parser.add_argument("--tokens", type=int, default=48, help="that the model writes [48]")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8")
    all_cases = list(cases(text, args.count, args.chunk_chars, args.fragment_chars))
    rows = []
    print(f"{'type':8} {'characters':>10} {'s.e.':>6} {'median':>7} {'none':>6}")
    for kv_type in args.types.split(","):
        scores = scores_of(args.model, kv_type, args, all_cases)
        error = statistics.stdev(scores) / len(scores) ** 0.5
        none = sum(score < 4 for score in scores)
        rows.append({"type": kv_type, "mean_characters": round(statistics.mean(scores), 2),
                     "standard_error": round(error, 2), "median_characters": statistics.median(scores),
                     "prompts_below_4": none, "scores": scores})  # fmt: skip
        print(f"{kv_type:8} {rows[-1]['mean_characters']:10} {error:6.1f} {rows[-1]['median_characters']:7} {none:6}")
    if args.out is not None:
        meta = {"benchmark": "repetition", "date": datetime.date.today().isoformat(),
                "machine": platform.processor() or platform.machine(), "headrace": headrace.__version__,
                "model": pathlib.Path(args.model).name, "text": args.text.name, "prompts": args.count,
                "chunk_chars": args.chunk_chars, "fragment_chars": args.fragment_chars,
                "tokens": args.tokens}  # fmt: skip
        args.out.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
