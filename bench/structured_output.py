#!/usr/bin/env python3
"""Are answers under a JSON Schema valid, and what do the masks cost?

    python bench/structured_output.py --model FILE --requests 1000 [--device cuda] --out RESULT.json

Prompts ask for JSON of four schemas, at temperature 1. An answer that ends by itself is checked with jsonschema; one
that is cut off is the beginning of a match. The same prompts without a schema give the throughput that the masks are
compared with; rounds alternate. Their answers have as many tokens, and end as unexpectedly where that can be had: with
a stop token, the last token of the answer in a run before, if it is there only once. Needs jsonschema, and a model with
a chat template or --raw.
"""

import dataclasses
import importlib.metadata
import json
import statistics
import sys
import time

import headrace
import jsonschema
from engine_report import meta, parser_of, write

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


def run(llm, prompts, all_params, streams, label, ends=None):
    """Seconds, and the (text, tokens, finish_reason) of each request. ends: stop tokens of each."""
    engine = headrace.Engine(llm, max_num_seqs=streams, max_requests=len(prompts))
    begin = time.perf_counter()
    ids = {
        engine.add(prompt, params, stop_tokens=ends[i] if ends else ()): i
        for i, (prompt, params) in enumerate(zip(prompts, all_params, strict=True))
    }
    texts, tokens, reasons = [""] * len(prompts), [[] for _ in prompts], [None] * len(prompts)
    for output in engine.stream():
        i = ids[output.id]
        texts[i] += output.text
        tokens[i] += output.tokens
        if output.finish_reason:
            reasons[i] = output.finish_reason
            done = sum(reason is not None for reason in reasons)
            print(f"\r{label}: {done} of {len(prompts)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return time.perf_counter() - begin, list(zip(texts, tokens, reasons, strict=True))


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=32, help="computed at once [32]")
    parser.add_argument("--tokens", type=int, default=160, help="of an answer, at most [160]")
    parser.add_argument("--raw", action="store_true", help="prompts without a chat template")
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
    _, answers = run(llm, prompts, under_schema, args.streams, "lengths")
    lengths = [len(tokens) for _, tokens, _ in answers]
    free = [
        headrace.SamplingParams(temperature=1.0, seed=i, max_tokens=length, ignore_eos=True)
        for i, length in enumerate(lengths)
    ]
    _, free_answers = run(llm, prompts, free, args.streams, "stop tokens")
    ends = [
        tokens[-1:] if reason == "stop" and tokens.count(tokens[-1]) == 1 else []
        for (_, tokens, _), (_, _, reason) in zip(free_answers, answers, strict=True)
    ]
    free = [
        dataclasses.replace(params, max_tokens=args.tokens) if end else params
        for params, end in zip(free, ends, strict=True)
    ]
    seconds = {"schema": [], "free": []}
    for n in range(args.rounds):
        taken, answers = run(llm, prompts, under_schema, args.streams, f"round {n + 1}, under a schema")
        seconds["schema"].append(taken)
        taken, free_answers = run(llm, prompts, free, args.streams, f"round {n + 1}, without", ends)
        seconds["free"].append(taken)
    ended = [(text, i) for i, (text, _, reason) in enumerate(answers) if reason == "stop"]
    num_valid = sum(is_valid(text, SCHEMAS[i % len(SCHEMAS)]) for text, i in ended)
    num_tokens, num_free = (sum(len(tokens) for _, tokens, _ in side) for side in (answers, free_answers))
    schema, free = (statistics.median(seconds[side]) for side in ("schema", "free"))
    result = {
        "meta": meta("structured_output", args, llm) | {"jsonschema": importlib.metadata.version("jsonschema")},
        "requests": args.requests, "ended": len(ended), "valid": num_valid, "answer_tokens": num_tokens,
        "free_answer_tokens": num_free, "tokens_per_s": num_tokens / schema, "free_tokens_per_s": num_free / free,
        "ratio": (num_tokens / schema) / (num_free / free), "seconds": seconds,
    }  # fmt: skip
    print(
        f"{len(ended)} of {args.requests} answers ended by themselves, {num_valid} of them are valid\n"
        f"{num_tokens / schema:.0f} tokens/s under a schema, {num_free / free:.0f} without: {result['ratio']:.3f}x"
    )
    write(args.out, result)
    return 0 if num_valid == len(ended) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
