"""Calls on arrays whose plans may be one: they differ in the address of an array, or in a word of dropout."""

import itertools

import numpy as np
import pytest
from call_orders import are_same, check_both_orders
from test_arrays import make

import headrace

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")
BACKWARD = ("dout", "dq", "dk", "dv")


def arrays_of(dtype):
    """{argument: array} of a backward. Those of its forward are q, k, v and out."""
    rng = np.random.default_rng(5)
    q, k, v = (make(rng, shape, dtype) for shape in ((1, 5, 4, 16), (1, 7, 2, 16), (1, 7, 2, 16)))
    out, lse = headrace.attention(q, k, v, return_lse=True)
    gradients = {f"d{n}": np.zeros_like(x) for n, x in {"q": q, "k": k, "v": v}.items()}
    return {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": make(rng, out.shape, dtype), **gradients}


def at(array, offset):
    """A copy, `offset` bytes behind a multiple of 16."""
    memory = np.zeros(array.nbytes + 32, np.uint8)
    first = -memory.ctypes.data % 16 + offset
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def call_at(is_backward, name, offset, dtype):
    """With all arrays at multiples of 16 but this one."""
    arrays = {n: at(x, offset if n == name else 0) for n, x in arrays_of(dtype).items()}
    if is_backward:
        return lambda: tuple(headrace.attention_backward(**arrays))
    forward = {n: arrays[n] for n in ("q", "k", "v", "out")}
    return lambda: headrace.attention(**forward)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(
    ("is_backward", "name"),
    [*((False, n) for n in ("q", "k", "v", "out")), *((True, n) for n in ("q", "k", "v", "out", *BACKWARD))],
    ids=lambda x: x if isinstance(x, str) else "backward" if x else "forward",
)
def test_calls_at_addresses_of_different_alignment(is_backward, name, dtype):
    offsets = [offset for offset in (0, 2, 4, 8, 12) if offset % np.dtype(dtype).itemsize == 0]
    for pair in itertools.combinations(offsets, 2):
        a, b = check_both_orders(*(call_at(is_backward, name, offset, dtype) for offset in pair))
        assert not isinstance(a, str)
        assert are_same(a, b), "the values are the same"


# The high halves of both words are one part of the key, added by xor: they have no bit in common.
SEEDS, OFFSETS = (0, 1, 1 << 63), (0, 2, 1 << 62)


@pytest.mark.parametrize("is_backward", [False, True], ids=["forward", "backward"])
def test_calls_that_differ_in_the_dropout_words(is_backward):
    arrays = arrays_of("float32")

    def call(seed, offset):
        options = {"dropout_p": 0.4, "dropout_seed": seed, "dropout_offset": offset}
        if is_backward:
            return lambda: tuple(headrace.attention_backward(**arrays, **options))
        return lambda: headrace.attention(arrays["q"], arrays["k"], arrays["v"], **options)

    for pair in itertools.combinations(itertools.product(SEEDS, OFFSETS), 2):
        a, b = check_both_orders(*(call(*words) for words in pair))
        assert not are_same(a, b), pair
