#!/usr/bin/env python3
"""Compares the SentencePiece tokenizer with SentencePiece and llama.cpp: tokens of random texts and texts of random
tokens, for the vocabularies of Mistral (package data of mistral_common) and trained ones.

    python tests/peers/sentencepiece_peer.py                   # --llama-cpp: with llama-cpp-python too
    python tests/peers/sentencepiece_peer.py --write-golden   # rewrite tests/golden/sentencepiece.json

Exit codes: 0 equal, 1 something differs, 2 usage.
"""

import argparse
import ctypes
import io
import json
import pathlib
import random
import re
import sys
import tempfile

import gguf
import mistral_common
import sentencepiece

import texts
from tokenizer import GOLDEN, compare, headrace, newest_tool

DATA = pathlib.Path(mistral_common.__file__).parent / "data"
MARK = "\u2581"
ADDED = [("<tool>", 4), ("[INST]", 3), ("<|im_end|>", 3)]
GOLDEN_CASES = 400
GOLDEN_PIECES = 1500


def train(byte_fallback):
    """The model of tests/golden/sentencepiece.json: English and the scripts of texts.py."""
    source = random.Random(7)
    bits = [*texts.WORDS, *texts.CODE, *texts.EMOJI, *texts.CONTRACTIONS, *texts.DIGITS]
    lines = (GOLDEN / "text/alice.txt").read_text(encoding="utf-8").split("\n")
    lines += [" ".join(source.choice(bits) for _ in range(8)) for _ in range(500)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=GOLDEN_PIECES,
        byte_fallback=byte_fallback, character_coverage=0.995, normalization_rule_name="identity", num_threads=1,
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True, minloglevel=2)
    return model.getvalue()


class Vocabulary:
    """Pieces with scores and types of a SentencePiece model."""

    def __init__(self, data, added=()):
        self.peer = sentencepiece.SentencePieceProcessor(model_proto=data)
        ids = range(self.peer.vocab_size())
        kinds = [(6, self.peer.is_byte), (2, self.peer.is_unknown), (3, self.peer.is_control), (5, self.peer.is_unused)]
        self.pieces = [self.peer.id_to_piece(i) for i in ids]
        self.scores = [self.peer.get_score(i) for i in ids]
        self.types = [next((kind for kind, is_kind in kinds if is_kind(i)), 1) for i in ids]
        for piece, kind in added:
            self.pieces, self.scores, self.types = [*self.pieces, piece], [*self.scores, 0.0], [*self.types, kind]
        self.specials = {piece: i for i, (piece, kind) in enumerate(zip(self.pieces, self.types)) if kind in (2, 3, 4)}
        self.split = re.compile("(" + "|".join(map(re.escape, sorted(self.specials, key=len, reverse=True))) + ")")

    def tokens(self, text):
        """The fragments between special tokens are encoded one by one, as llama.cpp does."""
        found = []
        for part in self.split.split(text):
            found += [self.specials[part]] if part in self.specials else self.peer.encode(part)
        return found

    def write_gguf(self, path):
        write_gguf(path, "llama", "default", self.pieces, self.types, scores=self.scores)


def write_gguf(path, model, pre, tokens, types, scores=None, merges=None):
    """A file of a vocabulary alone. The sizes of the model are there for llama.cpp."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(8)
    writer.add_head_count(1)
    writer.add_feed_forward_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores:
        writer.add_token_scores(scores)
    if merges:
        writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def make_cases(seed, count, longest, specials):
    source = random.Random(seed)
    fixed = ["", " ", "  ", "\n", "\n\n ", MARK, f"a{MARK}b", f"{MARK}{MARK} ", "<0x0A>", "<s>", " <s>", "<s> ",
             "<s>a</s> b<unk>c", "\ufffd", "\0", "a" * 5000, " " * 5000, "ab" * 3000, "\u4e2d" * 2000,
             "\U0001f468\u200d" * 500, "=" * 3000, "the " * 2000, "a\u0301" * 999]
    return fixed + [texts.text(source, specials, longest) for _ in range(count)]


def compare_model(args, name, vocabulary, folder):
    path = folder / "vocabulary.gguf"
    vocabulary.write_gguf(path)
    cases = make_cases(args.seed, args.count, 12, list(vocabulary.specials))
    ours = headrace(args.tool, ["tokens", path], cases)
    wrong = compare(f"{name}, tokens by SentencePiece", cases, ours, [vocabulary.tokens(text) for text in cases])
    source = random.Random(args.seed)
    # A byte token of a space at the start: SentencePiece keeps it, llama.cpp removes it.
    plain = [i for i, kind in enumerate(vocabulary.types) if kind in (1, 6) and vocabulary.pieces[i] != "<0x20>"]
    lists = ours + [source.choices(plain, k=source.randrange(1, 20)) for _ in range(args.count)]
    decoded = decode(args.tool, path, lists)
    kept = [i for i, ids in enumerate(lists) if set(ids) <= set(plain) and is_text(decoded[i])]
    wrong += compare(f"{name}, texts by SentencePiece", [lists[i] for i in kept], [decoded[i].decode() for i in kept],
                     [vocabulary.peer.decode(lists[i]) for i in kept])
    back = [text for text in cases if MARK not in text and 6 in vocabulary.types]
    decoded_back = decode(args.tool, path, headrace(args.tool, ["tokens", path], back))
    wrong += compare(f"{name}, decode(encode(x)) == x", back, decoded_back, [text.encode() for text in back])
    if args.llama_cpp and 6 in vocabulary.types:
        wrong += compare_llama_cpp(name, path, cases, ours, lists, decoded, set(vocabulary.specials.values()))
    return wrong


def compare_llama_cpp(name, path, cases, ours, lists, decoded, specials):
    import llama_cpp

    llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    # It finds special tokens by their length, not from the left: no case has overlapping ones.
    wrong = compare(f"{name}, tokens by llama.cpp", cases, ours,
                    [llama.tokenize(text.encode(), add_bos=False, special=True) for text in cases])
    # It removes the space prefix of the first token alone.
    kept = [i for i, ids in enumerate(lists) if not specials & set(ids)]
    peer = [detokenize(llama_cpp, llama._model.vocab, lists[i]) for i in kept]
    return wrong + compare(f"{name}, texts by llama.cpp", [lists[i] for i in kept], [decoded[i] for i in kept], peer)


def detokenize(llama_cpp, vocab, ids):
    """By the C function: the package's own method joins the texts of single tokens."""
    array = (llama_cpp.llama_token * len(ids))(*ids)
    text = ctypes.create_string_buffer(64 * len(ids) + 64)
    length = llama_cpp.llama_detokenize(vocab, array, len(ids), text, len(text), False, True)
    assert length >= 0
    return text.raw[:length]


def is_text(data):
    try:
        return data.decode() is not None
    except UnicodeDecodeError:
        return False


def decode(tool, path, lists):
    return [bytes(one) for one in headrace(tool, ["texts", path], [" ".join(map(str, ids)) for ids in lists])]


def run(args):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"]:
            wrong += compare_model(args, name, Vocabulary((DATA / name).read_bytes()), pathlib.Path(folder))
        for byte_fallback in [True, False]:
            vocabulary = Vocabulary(train(byte_fallback), ADDED)
            wrong += compare_model(args, f"trained, bytes {byte_fallback}", vocabulary, pathlib.Path(folder))
    return 1 if wrong else 0


def write_golden(args):
    """The trained vocabulary, and SentencePiece's tokens of random texts with it."""
    vocabulary = Vocabulary(train(True), ADDED)
    line = lambda value: json.dumps(value, separators=(",", ":"))
    cases = [text for text in make_cases(args.seed, GOLDEN_CASES, 5, list(vocabulary.specials)) if len(text) < 300]
    rows = [line([text, vocabulary.tokens(text)]) for text in cases]
    pieces = [line(piece) for piece in zip(vocabulary.pieces, vocabulary.scores, vocabulary.types)]
    (GOLDEN / "sentencepiece.json").write_text(
        f'{{"made_with": "sentencepiece {sentencepiece.__version__}, tests/peers/sentencepiece_peer.py '
        '--write-golden",\n'
        '"pieces": [\n' + ",\n".join(pieces) + '\n],\n"rows": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", type=pathlib.Path, help="headrace_tokenizer_pipe; default: the newest below build/")
    parser.add_argument("--count", type=int, default=10_000, help="texts for each vocabulary")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--llama-cpp", action="store_true", help="compare with llama-cpp-python too")
    parser.add_argument("--write-golden", action="store_true", help="rewrite the fixture")
    args = parser.parse_args()
    args.tool = args.tool or newest_tool()
    return write_golden(args) if args.write_golden else run(args)


if __name__ == "__main__":
    sys.exit(main())
