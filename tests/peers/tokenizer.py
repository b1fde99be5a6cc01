#!/usr/bin/env python3
"""Compares the tokenizer with Hugging Face `tokenizers`: pieces and token ids of random texts, per pre-tokenizer.

    python tests/peers/tokenizer.py                        # the vocabulary of tests/golden/
    python tests/peers/tokenizer.py --model FILE.gguf      # a real vocabulary
    python tests/peers/tokenizer.py --model FILE.gguf --write-golden

Exit codes: 0 equal, 1 something differs, 2 usage.
"""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys

import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers

import texts

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
KINDS = ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"]
GOLDEN_MERGES = 6000
GOLDEN_CASES = 2000

# From the models' tokenizer.json.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# Published ids of texts, for SmolLM2's own vocabulary.
SMOLLM2 = {
    "Hello, we can use": [19556, 28, 392, 416, 722],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "\n": [198],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "Caf\u00e9 d\u00e9j\u00e0 vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
    "  multiple   spaces": [216, 2701, 256, 5600],
}


def pre_tokenizer(kind):
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "gpt-2":
        return gpt2
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    pattern = Regex({"llama-bpe": LLAMA3, "qwen2": QWEN2, "tekken": TEKKEN}[kind])
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, behavior="isolated"), plain])


class Vocabulary:
    """Tokens, types and merges of a GGUF file or of tests/golden/."""

    def __init__(self, path):
        self.path = path
        if path.suffix == ".json":
            data = json.loads(path.read_text(encoding="utf-8"))
            merged = [merge.replace(" ", "") for merge in data["merges"]]
            self.specials = data["specials"]
            self.merges = data["merges"]
            self.tokens = [text for text, _ in self.specials] + data["bytes"] + merged + data["extra"]
        else:
            import gguf  # imported only here: the golden vocabulary does not need it

            fields = gguf.GGUFReader(path).fields
            read = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
            self.tokens, self.merges, types = read("tokens"), read("merges"), read("token_type")
            self.specials = [[text, kind] for text, kind in zip(self.tokens, types) if kind in (3, 4)]

    def hugging_face(self, kind):
        ids = {text: i for i, text in enumerate(self.tokens)}
        model = models.BPE(vocab=ids, merges=[tuple(merge.split(" ")) for merge in self.merges],
                           ignore_merges=kind in ("llama-bpe", "tekken"))
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizer(kind)
        for text, token_type in self.specials:
            tokenizer.add_tokens([AddedToken(text, special=token_type == 3, normalized=False)])
        return tokenizer


def newest_tool():
    found = sorted(ROOT.glob("build/*/tests/headrace_tokenizer_pipe"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit("tokenizer.py: no build/*/tests/headrace_tokenizer_pipe: build it, or name it with --tool")
    return found[-1]


def headrace(tool, arguments, cases):
    blob = b"".join(struct.pack("<I", len(data)) + data for data in (text.encode() for text in cases))
    done = subprocess.run([tool, *arguments], input=blob, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"tokenizer.py: {tool} {arguments}: {done.stderr.decode()}")
    lines = done.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(cases)
    return [[int(word) for word in line.split()] for line in lines]


def piece_lengths(pre, text):
    return [len(text[begin:end].encode()) for _, (begin, end) in pre.pre_tokenize_str(text)]


def compare(what, cases, ours, theirs):
    wrong = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
    print(f"{what}: {len(cases)} texts, {len(wrong)} differ")
    for i in wrong[:5]:
        print(f"  {cases[i]!r}\n    headrace {ours[i]}\n    peer     {theirs[i]}")
    return len(wrong)


def other_unicode(tool):
    """Code points that the two sides classify differently, because their Unicode versions differ."""
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    differ = set()
    for kind in ["smollm", "llama-bpe", "tekken"]:
        cases = [f"a{c}a {c}{c}1{c}1\n{c}\n" for c in points]
        pre = pre_tokenizer(kind)
        ours = headrace(tool, ["pieces", kind], cases)
        differ.update(c for c, text, own in zip(points, cases, ours) if own != piece_lengths(pre, text))
    return differ


def ranges(points):
    points, found = sorted(ord(c) for c in points), []
    for point in points:
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in found)


def make_texts(seed, count, specials, without, longest):
    source = random.Random(seed)
    table = {ord(c): None for c in without}
    return [texts.text(source, [text for text, _ in specials], longest).translate(table) for _ in range(count)]


def run(args):
    without = other_unicode(args.tool)
    print(f"code points classified differently by the peer's Unicode version: {len(without)}: {ranges(without)}")
    vocabulary = Vocabulary(args.model)
    cases = make_texts(args.seed, args.count, vocabulary.specials, without, 12)
    wrong = 0
    for kind in KINDS:
        pre = pre_tokenizer(kind)
        pieces = headrace(args.tool, ["pieces", kind], cases)
        wrong += compare(f"{kind}, pieces", cases, pieces, [piece_lengths(pre, text) for text in cases])
        ids = headrace(args.tool, ["tokens", args.model, kind], cases)
        peer = [one.ids for one in vocabulary.hugging_face(kind).encode_batch(cases, add_special_tokens=False)]
        wrong += compare(f"{kind}, tokens", cases, ids, peer)
    if "SmolLM2" in args.model.name:
        published = headrace(args.tool, ["tokens", args.model], list(SMOLLM2))
        wrong += compare("published ids", list(SMOLLM2), published, list(SMOLLM2.values()))
    return 1 if wrong else 0


def write_golden(args):
    """The first merges of a real vocabulary, and the peer's tokens of random texts with them."""
    full = Vocabulary(args.model)
    merges = full.merges[:GOLDEN_MERGES]
    bytes_ = [text for text in full.tokens if len(text) == 1]
    specials = [*full.specials, ["<|im_start|>user", 3], ["<tool_call>", 4], ["<think>", 4]]
    extra = ["Headrace", "\u0120unreachable", "\u0120of\u0120the"]
    line = lambda value: json.dumps(value, ensure_ascii=False)
    (GOLDEN / "tokenizer_vocabulary.json").write_text(
        f'{{"specials": {line(specials)},\n"bytes": {line(bytes_)},\n"extra": {line(extra)},\n'
        f'"merges": {line(merges)}}}\n', encoding="utf-8")
    vocabulary = Vocabulary(GOLDEN / "tokenizer_vocabulary.json")
    without = other_unicode(args.tool)
    cases = make_texts(args.seed, GOLDEN_CASES, specials, without, 5)
    ids = {kind: [one.ids for one in vocabulary.hugging_face(kind).encode_batch(cases, add_special_tokens=False)]
           for kind in KINDS}
    rows = []
    for i, text in enumerate(cases):
        # null: the same ids as the first kind.
        row = [text, ids[KINDS[0]][i]] + [None if ids[k][i] == ids[KINDS[0]][i] else ids[k][i] for k in KINDS[1:]]
        rows.append(json.dumps(row, separators=(",", ":")))
    (GOLDEN / "tokenizer_cases.json").write_text(
        f'{{"made_with": "tokenizers {tokenizers.__version__}, tests/peers/tokenizer.py --write-golden",\n'
        f'"columns": {line(["text", *KINDS])},\n"rows": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", type=pathlib.Path, help="headrace_tokenizer_pipe; default: the newest below build/")
    parser.add_argument("--model", type=pathlib.Path, default=GOLDEN / "tokenizer_vocabulary.json")
    parser.add_argument("--count", type=int, default=100_000, help="texts for each pre-tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-golden", action="store_true", help="rewrite the fixtures from the model's vocabulary")
    args = parser.parse_args()
    args.tool = args.tool or newest_tool()
    return write_golden(args) if args.write_golden else run(args)


if __name__ == "__main__":
    sys.exit(main())
