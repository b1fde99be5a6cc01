"""Frequencies of every scaling of RoPE beside transformers' own functions."""

import ctypes

import numpy as np
import pytest

from headrace import _structs
from headrace._library import LIBRARY, check

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
LlamaConfig = pytest.importorskip("transformers").LlamaConfig

LINEAR, NTK, DYNAMIC_NTK, YARN, LLAMA3 = range(1, 6)
YARN_OPTIONS = {"factor": 8.0, "original_max_position_embeddings": 4096}
CASES = [
    ("linear", LINEAR, {"factor": 4.0}, None),
    ("dynamic", DYNAMIC_NTK, {"factor": 4.0}, None),
    ("dynamic", DYNAMIC_NTK, {"factor": 4.0}, 50000),
    ("yarn", YARN, YARN_OPTIONS, None),
    ("yarn", YARN, {**YARN_OPTIONS, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False}, None),
    ("yarn", YARN, {**YARN_OPTIONS, "mscale": 1.0, "mscale_all_dim": 0.5}, None),
    ("yarn", YARN, {**YARN_OPTIONS, "attention_factor": 1.25}, None),
    (
        "llama3", LLAMA3,
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        None,
    ),
]  # fmt: skip
IDS = [f"{case[0]}{i}" for i, case in enumerate(CASES)]
OUR_NAMES = {"original_max_position_embeddings": "original_context_length"}


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(("name", "scaling", "given", "seqlen"), CASES, ids=IDS)
def test_frequencies_are_those_of_transformers(name, scaling, given, seqlen, theta):
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=4, head_dim=128, max_position_embeddings=4096, rope_theta=theta,
        rope_scaling={"rope_type": name, "rope_theta": theta, **given},
    )  # fmt: skip
    expected, expected_factor = rope_utils.ROPE_INIT_FUNCTIONS[name](config, "cpu", seqlen)
    options = _structs.RopeOptions()
    check(LIBRARY.headrace_rope_options_init_sized(ctypes.addressof(options), ctypes.sizeof(options)))
    options.scaling, options.rot_dim, options.base = scaling, 128, theta
    if scaling == DYNAMIC_NTK:
        options.original_context_length, options.seqlen = 4096, seqlen or 4096
    for option, value in given.items():
        setattr(options, OUR_NAMES.get(option, option), int(value) if option == "truncate" else value)
    frequencies, factor = np.zeros(64), ctypes.c_double()
    address = frequencies.ctypes.data_as(ctypes.c_void_p)
    check(
        LIBRARY.headrace_rope_frequencies(
            ctypes.byref(options), address, ctypes.c_size_t(64), ctypes.byref(factor)
        )
    )
    # transformers computes in float32: a power and a few products.
    np.testing.assert_allclose(frequencies, expected.double().numpy(), rtol=2e-6)
    assert factor.value == pytest.approx(expected_factor, rel=1e-12)
