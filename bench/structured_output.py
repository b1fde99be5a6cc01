#!/usr/bin/env python3
"""Are answers under a JSON Schema valid, and what do the masks cost?

    python bench/structured_output.py --model FILE --requests 1000 [--device cuda] --out RESULT.json

Prompts ask for JSON of four schemas, at temperature 1. An answer that ends by itself is checked with jsonschema; one
that is cut off is the beginning of a match. The same prompts without a schema, with answers of as many tokens, give the
throughput that the masks are compared with; rounds alternate. Needs jsonschema, and a model with a chat template or
--raw.
"""

import argparse
import datetime
import json
import pathlib
import platform
import re
import statistics
import sys
import time

import headrace
import jsonschema

SCHEMAS = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome", "Oslo"]},
            "ok": {"type": "boolean"},
            "scores": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        },
        "required": ["city", "ok", "scores"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "when": {"type": "string", "format": "date"}},
            "required": ["id", "when"],
            "additionalProperties": False,
        },
        "minItems": 1,
        "maxItems": 3,
    },
    {
        "anyOf": [
            {"type": "null"},
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/words"}}, "required": ["a"]},
        ],
        "$defs": {"words": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 4}},
    },
)
THINGS = ("a person", "a city", "a list of events", "something", "a cat", "the weather", "a book", "a train")


def is_valid(text, schema):
    try:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError) as error:
        print(f"\ninvalid: {text!r}: {error}", file=sys.stderr)
        return False
    return True


def run(llm, prompts, all_params, streams, label):
    """Seconds, and the (text, tokens, finish_reason) of each request."""
    engine = headrace.Engine(llm, max_num_seqs=streams, max_requests=len(prompts))
    begin = time.perf_counter()
    ids = {engine.add(prompt, params): i for i, (prompt, params) in enumerate(zip(prompts, all_params, strict=True))}
    texts, counts, reasons = [""] * len(prompts), [0] * len(prompts), [None] * len(prompts)
    for output in engine.stream():
        i = ids[output.id]
        texts[i] += output.text
        counts[i] += len(output.tokens)
        if output.finish_reason:
            reasons[i] = output.finish_reason
            done = sum(reason is not None for reason in reasons)
            print(f"\r{label}: {done} of {len(prompts)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return time.perf_counter() - begin, list(zip(texts, counts, reasons, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of a CPU; default: all")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=32, help="computed at once [32]")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer, at most [160]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--raw", action="store_true", help="prompts without a chat template")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    llm = headrace.LLM(args.model, device=args.device, num_threads=args.threads, max_context=512)
    prompts, under_schema = [], []
    for i in range(args.requests):
        text = f"Give me JSON that describes {THINGS[i % len(THINGS)]} number {i}."
        messages = [{"role": "user", "content": text}]
        prompts.append(llm.tokenize(text) if args.raw else llm.chat_tokens(messages))
        schema = SCHEMAS[i % len(SCHEMAS)]
        under_schema.append(
            headrace.SamplingParams(json_schema=schema, temperature=1.0, seed=i, max_tokens=args.tokens)
        )
    seconds = {"schema": [], "free": []}
    for n in range(args.rounds):
        taken, answers = run(llm, prompts, under_schema, args.streams, f"round {n + 1}, under a schema")
        seconds["schema"].append(taken)
        free = [
            headrace.SamplingParams(temperature=1.0, seed=i, max_tokens=answer[1], ignore_eos=True)
            for i, answer in enumerate(answers)
        ]
        seconds["free"].append(run(llm, prompts, free, args.streams, f"round {n + 1}, without")[0])
    ended = [(text, i) for i, (text, _, reason) in enumerate(answers) if reason == "stop"]
    num_valid = sum(is_valid(text, SCHEMAS[i % len(SCHEMAS)]) for text, i in ended)
    num_tokens = sum(count for _, count, _ in answers)
    match = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text())
    schema, free = (statistics.median(seconds[side]) for side in ("schema", "free"))
    result = {
        "meta": {
            "benchmark": "structured_output",
            "command": "python bench/structured_output.py " + " ".join(sys.argv[1:]),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "device": args.device, "machine": match[1] if match else platform.machine(),
            "headrace": headrace.__version__, "jsonschema": jsonschema.__version__, "model": llm.info.name,
        },
        "requests": args.requests, "ended": len(ended), "valid": num_valid, "answer_tokens": num_tokens,
        "tokens_per_s": num_tokens / schema, "free_tokens_per_s": num_tokens / free, "ratio": free / schema,
        "seconds": seconds,
    }  # fmt: skip
    print(
        f"{len(ended)} of {args.requests} answers ended by themselves, {num_valid} of them are valid\n"
        f"{num_tokens / schema:.0f} tokens/s under a schema, {num_tokens / free:.0f} without: {free / schema:.3f}x"
    )
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if num_valid == len(ended) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
