#!/usr/bin/env python3
"""Logits, perplexity and greedy answers of a real model by transformers in float32 and by llama.cpp.

Writes smollm2_logits.json and smollm2_greedy.json (described in tests/golden/README.md) and, for compare_logits.py, all
logits of both programs into the work folder."""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import sys

import numpy
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "peers"))

import gguf_llama  # noqa: E402
import llama_cpp_side  # noqa: E402
import logit_rules  # noqa: E402

WINDOW = 512
NUM_POSITIONS = 64  # with their top logits
NUM_TOP = 32
NUM_PROMPTS = 20
NUM_CANDIDATES = 32
NUM_ANSWER_TOKENS = 64
rounded = logit_rules.as_float32_text


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions():
    packages = ("torch", "transformers", "gguf", "numpy", "llama-cpp-python")
    return {name: importlib.metadata.version(name) for name in packages} | {
        "llama.cpp build": llama_cpp_side.versions()["llama_cpp_build"]
    }


def meta_of(options):
    return {"model": options.model.name, "model_sha256": sha256(options.model), "versions": versions()}


def chosen_positions(num_tokens):
    """First and last positions of every window, and evenly spaced ones in between."""
    edges = {p for start in range(0, num_tokens, WINDOW) for p in (start, min(start + WINDOW, num_tokens) - 1)}
    between = numpy.linspace(0, num_tokens - 1, NUM_POSITIONS * 2).astype(int)
    rest = [int(p) for p in between if int(p) not in edges]
    step = len(rest) / (NUM_POSITIONS - len(edges))
    return sorted(edges | {rest[int(i * step)] for i in range(NUM_POSITIONS - len(edges))})


def top_of(row, position):
    order = numpy.argsort(-row, kind="stable")[:NUM_TOP]
    largest = float(row.max())
    total = numpy.exp(row.astype(numpy.float64) - largest).sum()
    return {
        "position": position,
        "logsumexp": rounded(largest + numpy.log(total)),
        "tokens": [int(t) for t in order],
        "logits": [rounded(row[t]) for t in order],
    }


def make_logits(options, network, model):
    text = options.text.read_text(encoding="utf-8")
    tokens = model.tokenize(text)
    reference = gguf_llama.logits_of_windows(network, tokens, WINDOW)
    with llama_cpp_side.context(model, options.threads, "flash") as context:
        theirs = context.logits_of_windows(tokens, WINDOW)
    options.work.mkdir(parents=True, exist_ok=True)
    reference.tofile(options.work / "reference.f32")
    theirs.tofile(options.work / "llama_cpp.f32")
    logprobs = logit_rules.next_logprobs(reference, tokens, WINDOW)
    return {
        "meta": meta_of(options) | {"text": options.text.name, "text_sha256": sha256(options.text)},
        "window": WINDOW,
        "vocab_size": int(reference.shape[1]),
        "tokens": tokens,
        "perplexity": logit_rules.perplexity(logprobs),
        "llama_cpp": logit_rules.compare(theirs, reference, tokens, WINDOW)[1],
        "next_logprobs": [rounded(v) for v in logprobs],
        "positions": [top_of(reference[p], p) for p in chosen_positions(len(tokens))],
    }


def answers_of(network, keys, model, prompts, ends):
    for prompt in prompts:
        messages = [("user", prompt)]
        text = gguf_llama.chat_text(keys, messages)
        prompt_tokens = model.tokenize(text, has_special=True)
        steps = list(gguf_llama.greedy(network, prompt_tokens, NUM_ANSWER_TOKENS, ends))
        pairs = [logit_rules.top_two(logits) for _, logits in steps]
        yield {
            "prompt": prompt,
            "text": text,
            "prompt_tokens": prompt_tokens,
            "tokens": [token for token, _ in steps],
            "answer": model.text_of([token for token, _ in steps]),
            "second_tokens": [second[0] for _, second in pairs],
            "gaps": [rounded(first[1] - second[1]) for first, second in pairs],
        }, [logits for _, logits in steps]


def add_peer(answer, reference, context):
    """Adds llama.cpp's tokens, and its logits' distance from the reference's while the sequences are equal."""
    tokens, noise = [], []
    for i, (token, logits) in enumerate(context.greedy(answer["prompt_tokens"], NUM_ANSWER_TOKENS)):
        if tokens == answer["tokens"][:i] and i < len(reference):
            noise.append(rounded(numpy.abs(logits - reference[i]).max()))
        tokens.append(token)
    same = len(noise) - (tokens[: len(noise)] != answer["tokens"][: len(noise)])
    answer["llama_cpp_tokens"] = tokens
    answer["llama_cpp_noise"] = noise
    answer["llama_cpp_diverges_at"] = None if tokens == answer["tokens"] else same


def clearness(tokens, gaps):
    """Ranks prompts: the best have long answers without near ties. A step whose two best tokens are closer than the
    rounding of 8-bit activations may go either way in a correct program."""
    return (len(tokens) >= NUM_ANSWER_TOKENS, min(gaps))


def candidates(prompts, keys, model, context):
    """The prompts with llama.cpp's clearest answers; llama.cpp is faster than the reference."""
    ranked = []
    for index, prompt in enumerate(prompts):
        prompt_tokens = model.tokenize(gguf_llama.chat_text(keys, [("user", prompt)]), has_special=True)
        steps = list(context.greedy(prompt_tokens, NUM_ANSWER_TOKENS))
        pairs = [logit_rules.top_two(logits) for _, logits in steps]
        gaps = [first[1] - second[1] for first, second in pairs]
        ranked.append((clearness([token for token, _ in steps], gaps), -index))
    chosen = sorted(-index for _, index in sorted(ranked, reverse=True)[:NUM_CANDIDATES])
    return [prompts[index] for index in chosen]


def make_greedy(options, network, keys, model):
    prompts = [line for line in options.prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    ends = {token for token in range(model.vocab_size) if model.is_end(token)}
    with llama_cpp_side.context(model, options.threads, "flash") as context:
        chosen = candidates(prompts, keys, model, context)
        found = list(answers_of(network, keys, model, chosen, ends))
        found.sort(key=lambda pair: clearness(pair[0]["tokens"], pair[0]["gaps"]), reverse=True)
        found = sorted(found[:NUM_PROMPTS], key=lambda pair: prompts.index(pair[0]["prompt"]))
        for answer, reference in found:
            add_peer(answer, reference, context)
    return {
        "meta": meta_of(options) | {"prompts_sha256": sha256(options.prompts), "pool": len(prompts)},
        "end_tokens": sorted(ends),
        "answers": [answer for answer, _ in found],
    }


def write(folder, name, result):
    text = json.dumps(result, separators=(",", ":"))
    (folder / name).write_text(text.replace('{"position"', '\n{"position"').replace('{"prompt"', '\n{"prompt"') + "\n")
    print(f"{folder / name}: {len(text)} bytes")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    golden = ROOT / "tests" / "golden"
    parser.add_argument("--model", type=pathlib.Path, default=llama_cpp_side.cached_model_path())
    parser.add_argument("--text", type=pathlib.Path, default=golden / "text" / "alice.txt")
    parser.add_argument("--prompts", type=pathlib.Path, default=golden / "text" / "prompts.txt")
    parser.add_argument("--out", type=pathlib.Path, default=golden, help="folder of the fixtures")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "model-golden", help="all logits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("logits", "greedy"), help="make only one of the two")
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(options.threads)
    network, keys = gguf_llama.load(options.model)
    model = llama_cpp_side.Model(options.model)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only != "greedy":
        result = make_logits(options, network, model)
        write(options.out, "smollm2_logits.json", result)
        print(f"perplexity {result['perplexity']:.4f}, llama.cpp:", result["llama_cpp"])
    if options.only != "logits":
        result = make_greedy(options, network, keys, model)
        write(options.out, "smollm2_greedy.json", result)
        for answer in result["answers"]:
            print(f"{min(answer['gaps']):8.4f} {answer['llama_cpp_diverges_at']} {answer['answer']!r}")


if __name__ == "__main__":
    main()
