#!/usr/bin/env python3
"""Writes dequantise.json: random blocks of every weight format and their values by the `gguf` package.

    pip install gguf numpy
    python tests/golden/make_dequantise.py > tests/golden/dequantise.json
"""

import json
import sys

import gguf
import numpy

NAMES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
NUM_BLOCKS = 3
# Byte offsets of a block's f16 scales, which are made finite; everything else is random.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208]}  # fmt: skip


def blocks(name, rng):
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if name in ("F32", "F16", "BF16"):
        values = rng.standard_normal(64).astype(numpy.float32)
        if name == "F16":
            return values.astype(numpy.float16).view(numpy.uint8)
        return (values if name == "F32" else (values.view(numpy.uint32) >> 16).astype(numpy.uint16)).view(numpy.uint8)
    data = rng.integers(0, 256, (NUM_BLOCKS, size), dtype=numpy.uint8)
    for block in data:
        for offset in HALVES[name]:
            block[offset : offset + 2] = rng.standard_normal(1).astype(numpy.float16).view(numpy.uint8)
    return data.reshape(-1)


def main():
    rng = numpy.random.default_rng(20)
    cases = []
    for name in NAMES:
        data = blocks(name, rng)
        values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).astype(numpy.float32).reshape(-1)
        cases.append({"type": name, "data": data.tobytes().hex(), "values": [float(v) for v in values]})
    json.dump({"gguf": __import__("importlib.metadata").metadata.version("gguf"), "cases": cases}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
