#!/usr/bin/env python3
"""Small complete GGUF files with random weights, and their logits by transformers in float32.

Together they cover the variations of model files: grouped heads and not, head_dim that is not hidden / heads, a
scaled RoPE, biases, tied and own output, keys that are left to their defaults, and several weight types."""

import argparse
import dataclasses
import hashlib
import importlib.metadata
import json
import math
import pathlib
import sys
import tempfile

import gguf
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "peers"))

import gguf_llama  # noqa: E402
import llama_cpp_side  # noqa: E402

NUM_TOKENS = 32
CONTEXT_LENGTH = 128
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    "Ġ t", "h e", "Ġ a", "i n", "Ġt he", "r e", "o n", "e r", "Ġ s", "a t", "Ġ w", "Ġ o", "n d", "i t", "e s", "o u",
    "i s", "Ġ b", "e d", "Ġa nd", "in g", "o r", "Ġ f", "a n", "l l", "Ġ m", "Ġ c", "Ġo f",
)  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    family: str
    weight_type: str
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn_size: int = 96
    num_layers: int = 2
    rope_base: float | None = 10000.0  # None: omit the key
    rope_scaling: dict | None = None
    is_tied: bool = True
    norm_eps: float = 1e-5
    omits_kv_heads: bool = False
    seed: int = 1

    @property
    def has_biases(self):
        return self.family == "qwen2"


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,  # covers all three branches of the formula
}
SHAPES = (
    Shape("tiny_llama3_f16", "llama", "F16", rope_base=500000.0, rope_scaling=LLAMA3, is_tied=False, seed=1),
    Shape("tiny_llama_headdim32_q8_0", "llama", "Q8_0", head_dim=32, rope_base=100000.0, seed=2),
    Shape("tiny_llama2_q4_0", "llama", "Q4_0", num_kv_heads=4, ffn_size=160, rope_base=None, is_tied=False,
          norm_eps=1e-6, omits_kv_heads=True, seed=3),
    Shape("tiny_mistral_q4_1", "llama", "Q4_1", num_kv_heads=1, rope_base=1000000.0, is_tied=False, seed=4),
    Shape("tiny_qwen2_f32", "qwen2", "F32", hidden_size=32, num_heads=2, num_kv_heads=1, ffn_size=64,
          rope_base=1000000.0, norm_eps=1e-6, seed=5),
    Shape("tiny_qwen2_q5_0", "qwen2", "Q5_0", ffn_size=160, rope_base=1000000.0, norm_eps=1e-6, seed=6),
)  # fmt: skip


def byte_characters():
    """GPT-2's 256 characters for bytes: printable ones represent themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [table[b] for b in range(256)]


def vocabulary():
    tokens = [*SPECIAL, *byte_characters(), *(merge.replace(" ", "") for merge in MERGES), "[unused]"]
    types = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (256 + len(MERGES)) + [gguf.TokenType.UNUSED]
    return tokens, types


def add_vocabulary(writer, family):
    tokens, types = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if family == "qwen2" else "smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def add_keys(writer, shape):
    writer.add_name(shape.name)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if shape.weight_type == "F32" else f"MOSTLY_{shape.weight_type}"])
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.ffn_size)
    writer.add_head_count(shape.num_heads)
    if not shape.omits_kv_heads:
        writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    if shape.rope_base is not None:
        writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_dim)
    if shape.head_dim * shape.num_heads != shape.hidden_size:
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
    writer.add_vocab_size(len(vocabulary()[0]))


def rope_factors(shape):
    """The divisors of the frequencies by llama3's scaling."""
    scaling, factors = shape.rope_scaling, []
    old_length = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    for i in range(0, shape.head_dim, 2):
        turns = old_length * shape.rope_base ** (-i / shape.head_dim) / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - share) / scaling["factor"] + share))
    return numpy.array(factors, numpy.float32)


class Weights:
    """Random tensors in the file's row order."""

    def __init__(self, writer, shape, as_floats):
        self._writer, self._shape, self._as_floats = writer, shape, as_floats
        self._rng = numpy.random.default_rng(shape.seed)

    def matrix(self, name, rows, columns, gain=1.0):
        # Some outliers, as in trained weights: they determine the scales of the blocks.
        values = self._rng.standard_t(5, (rows, columns)) * gain / math.sqrt(columns)
        kind = gguf.GGMLQuantizationType[self._shape.weight_type]
        data = gguf.quants.quantize(values.astype(numpy.float32), kind)
        if self._as_floats:
            data, kind = gguf.quants.dequantize(data, kind), gguf.GGMLQuantizationType.F32
        self._writer.add_tensor(name, data, raw_dtype=kind)

    def vector(self, name, size, mean, deviation):
        values = mean + deviation * self._rng.standard_normal(size)
        self._writer.add_tensor(name, values.astype(numpy.float32))

    def layer(self, i):
        s = self._shape
        q_size, kv_size = s.num_heads * s.head_dim, s.num_kv_heads * s.head_dim
        self.vector(f"blk.{i}.attn_norm.weight", s.hidden_size, 1.0, 0.2)
        for name, size, gain in (("attn_q", q_size, 1.2), ("attn_k", kv_size, 1.2), ("attn_v", kv_size, 1.0)):
            self.matrix(f"blk.{i}.{name}.weight", size, s.hidden_size, gain)
            if s.has_biases:
                self.vector(f"blk.{i}.{name}.bias", size, 0.0, 0.5)
        self.matrix(f"blk.{i}.attn_output.weight", s.hidden_size, q_size)
        self.vector(f"blk.{i}.ffn_norm.weight", s.hidden_size, 1.0, 0.2)
        self.matrix(f"blk.{i}.ffn_gate.weight", s.ffn_size, s.hidden_size)
        self.matrix(f"blk.{i}.ffn_up.weight", s.ffn_size, s.hidden_size)
        self.matrix(f"blk.{i}.ffn_down.weight", s.hidden_size, s.ffn_size)

    def all(self, vocab_size):
        s = self._shape
        self.matrix("token_embd.weight", vocab_size, s.hidden_size, 2.0)
        if s.rope_scaling:
            self._writer.add_tensor("rope_freqs.weight", rope_factors(s))
        for i in range(s.num_layers):
            self.layer(i)
        self.vector("output_norm.weight", s.hidden_size, 1.0, 0.2)
        if not s.is_tied:
            self.matrix("output.weight", vocab_size, s.hidden_size, 2.0)


def write_file(path, shape, as_floats=False):
    writer = gguf.GGUFWriter(path, shape.family)
    add_keys(writer, shape)
    vocab_size = add_vocabulary(writer, shape.family)
    Weights(writer, shape, as_floats).all(vocab_size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return vocab_size


def llama_cpp_difference(path, tokens, logits):
    """Largest difference from llama.cpp's logits."""
    model = llama_cpp_side.Model(path)
    with llama_cpp_side.context(model, 1, "plain", CONTEXT_LENGTH, has_float_cache=True) as context:
        return float(numpy.abs(context.logits_of_windows(tokens, NUM_TOKENS) - logits).max())


def check_with_llama_cpp(shape, tokens, logits):
    """llama.cpp, which is independent of this script, must agree on the file's meaning: with the same weights as floats
    it differs from the reference only by the order of sums."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "floats.gguf"
        write_file(path, shape, as_floats=True)
        difference = llama_cpp_difference(path, tokens, logits)
    if difference > 1e-3 * numpy.abs(logits).max():
        raise ValueError(f"{shape.name}: llama.cpp differs by {difference}: the file is not as intended")
    return difference


def make(folder, shape):
    path = folder / f"{shape.name}.gguf"
    vocab_size = write_file(path, shape)
    tokens = [int(t) for t in numpy.random.default_rng(100 + shape.seed).integers(0, vocab_size, NUM_TOKENS)]
    network, _ = gguf_llama.load(path, shape.rope_scaling)
    logits = gguf_llama.logits_of_windows(network, tokens, NUM_TOKENS)
    logits.astype("<f4").tofile(folder / f"{shape.name}.logits.f32")
    as_floats = check_with_llama_cpp(shape, tokens, logits)
    difference = llama_cpp_difference(path, tokens, logits)
    print(f"{shape.name}: {path.stat().st_size} bytes, logits to {numpy.abs(logits).max():.1f}, llama.cpp differs by "
          f"{difference:.1e}, with float weights by {as_floats:.1e}")  # fmt: skip
    return {
        "name": shape.name,
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "tokens": tokens,
        "logits": f"{shape.name}.logits.f32",
        "vocab_size": vocab_size,
        "largest_logit": float(numpy.abs(logits).max()),
        "llama_cpp_difference": difference,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "golden" / "tiny")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    names = ("torch", "transformers", "gguf", "numpy", "llama-cpp-python")
    versions = {name: importlib.metadata.version(name) for name in names}
    models = [make(folder, shape) for shape in SHAPES]
    text = json.dumps({"versions": versions, "models": models}, separators=(",", ":"))
    (folder / "tiny.json").write_text(text.replace('{"name"', '\n{"name"') + "\n")


if __name__ == "__main__":
    main()
