"""headrace.softmax on arrays, against float64."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace

FLOATS = ["float32", "float16"] + (["bfloat16"] if oracle.BF16 is not None else [])
# Half an ulp, relative; two float roundings per term, and the exponential.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def dtype_of(name):
    return oracle.BF16 if name == "bfloat16" else np.dtype(name)


def expected(x, axis, scale=1.0):
    s = np.asarray(np.asarray(x, np.float32) * np.float32(scale), np.float64)
    top = s.max(axis, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(axis, keepdims=True)
    return e / total, (top + np.log(total)).squeeze(axis)


def check_close(got, want, dtype):
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape
    # An exponent of at most 104 loses half an ulp, the sum some twenty roundings.
    bound = np.abs(want) * (ROUNDING[dtype] + 240 * 2.0**-24) + 2.0**-24 * (dtype == "float16") + 2.0**-126
    assert (np.abs(got - want) <= bound).all()


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    axis=st.integers(-6, 5),
    dtype=st.sampled_from(FLOATS),
    scale=st.sampled_from([1.0, -0.3, 2.5]),
    algorithm=st.sampled_from(["auto", "safe", "online"]),
    is_transposed=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_equals_float64(shape, axis, dtype, scale, algorithm, is_transposed, seed):
    axis = axis % len(shape) - (len(shape) if axis < 0 else 0)
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype_of(dtype))
    if is_transposed:
        x = x.T
    y, lse = headrace.softmax(x, axis, scale=scale, algorithm=algorithm, return_lse=True)
    want, want_lse = expected(x, axis, scale)
    assert y.dtype == x.dtype
    check_close(y, want, dtype)
    assert lse.dtype == np.float32
    np.testing.assert_allclose(lse, want_lse, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_backward_is_the_gradient(rng, axis):
    x, dy = (rng.standard_normal((4, 33, 5)).astype(np.float32) for _ in range(2))
    y = headrace.softmax(x, axis, scale=0.5)
    dx = headrace.softmax_backward(y, dy, axis, scale=0.5)
    y, dy = np.float64(y), np.float64(dy)
    np.testing.assert_allclose(dx, 0.5 * y * (dy - (y * dy).sum(axis, keepdims=True)), rtol=1e-4, atol=1e-7)


def test_writes_where_it_is_told(rng):
    x = rng.standard_normal((3, 40)).astype(np.float32)
    want = headrace.softmax(x)
    out, lse = np.empty_like(x), np.empty(3, np.float32)
    results = headrace.softmax(x, out=out, lse=lse)
    assert results[0] is out and results[1] is lse
    np.testing.assert_array_equal(out, want)
    assert headrace.softmax(x, out=x) is x
    np.testing.assert_array_equal(x, want)


def test_rows_without_finite_elements():
    x = np.array([[-np.inf, -np.inf], [0, np.inf], [np.nan, 1]], np.float32)
    y, lse = headrace.softmax(x, return_lse=True)
    assert (y[0] == 0).all() and lse[0] == -np.inf
    assert np.isnan(y[1:]).all() and np.isnan(lse[1:]).all()


def test_takes_dlpack(rng):
    class Exporter:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x = rng.standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(headrace.softmax(Exporter(x)), headrace.softmax(x))


def test_errors_say_what_is_wrong():
    x = np.zeros((2, 3), np.float32)
    for call, text in [
        (lambda: headrace.softmax(x, 2), "axis=2: must be -2 to 1"),
        (lambda: headrace.softmax(x, 2**40), "axis=.*integer of 32 bits"),
        (lambda: headrace.softmax(x, algorithm="fast"), "algorithm='fast'"),
        (lambda: headrace.softmax(x, scale=float("inf")), "scale=inf: must be finite"),
        (lambda: headrace.softmax(np.zeros((2, 3))), "x.dtype=f64: must be f32, f16 or bf16"),
        (lambda: headrace.softmax(x, out=np.zeros((3, 2), np.float32)), r"y.shape\[0\]=3"),
        (lambda: headrace.softmax_backward(x, x[:1]), r"dy.shape\[0\]=1"),
        (lambda: headrace.softmax(np.zeros(()).astype(np.float32)), "x.rank=0"),
        (lambda: headrace.softmax(np.zeros((1,) * 7, np.float32)), "7 axes"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match="x is a list"):
        headrace.softmax([1.0, 2.0])
