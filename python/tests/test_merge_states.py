"""headrace.merge_states and headrace.torch.flash_attn_combine against float64, and against attention over all keys."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace

FLOATS = ["float32", "float16"] + (["bfloat16"] if oracle.BF16 is not None else [])
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def dtype_of(name):
    return oracle.BF16 if name == "bfloat16" else np.dtype(name)


def expected(outs, lses):
    """float64; outs [n, .., seqlen, heads, dim], lses [n, .., heads, seqlen]."""
    lses = lses.astype(np.float64)
    top = lses.max(0)
    weights = np.exp(lses - np.where(np.isinf(top), 0, top))
    total = weights.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(total > 0, weights / total, 0.0)
        lse = np.where(total > 0, top + np.log(total), -np.inf)
    shares = np.swapaxes(shares, -1, -2)[..., None]
    values = np.where(shares > 0, outs.astype(np.float64), 0.0)
    return (shares * values).sum(0), lse, np.abs(values).max(0)


def check_merged(out, lse, outs, lses, dtype):
    want, want_lse, largest = expected(outs, lses)
    n = len(outs)
    assert out.shape == want.shape and lse.shape == want_lse.shape
    bound = largest * ((4 * n + 5) * 2.0**-24 + ROUNDING[dtype] * 1.01) + 2.0**-24 * (dtype == "float16")
    assert (np.abs(out.astype(np.float64) - want) <= bound).all()
    has_keys = want_lse > -np.inf
    assert (lse[~has_keys] == -np.inf).all()
    error = np.abs(lse[has_keys].astype(np.float64) - want_lse[has_keys])
    assert (error <= 2.0**-24 * (2 * n + 14 + np.abs(want_lse[has_keys]))).all()


def states(rng, shape, num_states, dtype):
    *lead, seqlen, heads, _ = shape
    outs = rng.standard_normal((num_states, *shape)).astype(dtype_of(dtype))
    lses = (3 * rng.standard_normal((num_states, *lead, heads, seqlen))).astype(np.float32)
    lses[rng.random(lses.shape) < 0.2] = -np.inf
    outs[np.swapaxes(lses, -1, -2) == -np.inf] = np.nan
    return outs, lses


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 70)),
    is_ragged=st.booleans(),
    num_states=st.integers(1, 9),
    dtype=st.sampled_from(FLOATS),
    is_stacked=st.booleans(),
    is_transposed=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_equals_float64(shape, is_ragged, num_states, dtype, is_stacked, is_transposed, seed):
    outs, lses = states(np.random.default_rng(seed), shape[is_ragged:], num_states, dtype)
    if is_transposed:  # heads before rows in memory
        outs = np.swapaxes(np.ascontiguousarray(np.swapaxes(outs, -2, -3)), -2, -3)
        lses = np.swapaxes(np.ascontiguousarray(np.swapaxes(lses, -1, -2)), -1, -2)
    given_states = (outs, lses) if is_stacked else (list(outs), tuple(lses))
    out, lse = headrace.merge_states(*given_states)
    assert out.dtype == outs.dtype and lse.dtype == np.float32
    check_merged(out, lse, outs, lses, dtype)


def test_parts_of_the_keys_are_attention_over_all(rng):
    q, k, v = (rng.standard_normal((2, n, 4, 32)).astype(np.float32) for n in (3, 50, 50))
    parts = [headrace.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 16), (16, 17), (17, 50))]
    out, lse = headrace.merge_states([out for out, _ in parts], [lse for _, lse in parts])
    whole, whole_lse = headrace.attention(q, k, v, return_lse=True)
    # |out| is below 4 and |lse| below 8; the kernels' exponentials and sums have some ten roundings each.
    np.testing.assert_allclose(out, whole, rtol=0, atol=2.0**-18)
    np.testing.assert_allclose(lse, whole_lse, rtol=0, atol=2.0**-18)


def test_the_result_may_replace_a_state(rng):
    outs, lses = states(rng, (2, 3, 2, 8), 3, "float32")
    out, lse = headrace.merge_states(outs, lses)
    first, first_lse = list(outs), list(lses)
    same, same_lse = headrace.merge_states(first, first_lse, out=first[1], lse=first_lse[1])
    assert same is first[1] and same_lse is first_lse[1]
    np.testing.assert_array_equal(same, out)
    np.testing.assert_array_equal(same_lse, lse)


def test_errors_name_the_argument(rng):
    outs, lses = states(rng, (2, 3, 2, 8), 2, "float32")
    cases = [
        (([], []), "outs is empty"),
        ((outs, lses[:1]), "lses has 1 states: must have 2"),
        ((np.float32(1), lses), "outs.*is a float32"),
        ((np.zeros(()), lses), "outs has no axes"),
        ((outs[:0], lses[:0]), "must have 1 state or more"),
        ((outs.astype(np.float64), lses), r"outs\[0\].dtype=f64"),
        ((outs, lses.astype(np.float16)), r"lses\[0\].dtype=f16"),
        ((outs, np.swapaxes(lses, -1, -2)), r"lses\[0\].shape\[1\]=3"),
        (([outs[0], outs[1, ::-1]], lses), r"outs\[1\].strides\[0\]"),
        ((np.zeros((129, 1, 1, 4), np.float32), np.zeros((129, 1, 1), np.float32)), "num_states=129"),
    ]
    for arguments, text in cases:
        with pytest.raises((ValueError, TypeError), match=text):
            headrace.merge_states(*arguments)
    with pytest.raises(ValueError, match="out is read-only"):
        fixed = outs[0].copy()
        fixed.flags.writeable = False
        headrace.merge_states(outs, lses, out=fixed)


# ---- flash_attn_combine


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize("out_dtype", [None, "bfloat16"])
def test_combine(torch, rng, is_ragged, out_dtype):
    from headrace.torch import flash_attn_combine

    outs, lses = states(rng, (2, 5, 3, 40)[is_ragged:], 4, "float32")
    partial = torch.from_numpy(outs)
    partial_lse = torch.from_numpy(lses).transpose(-1, -2)
    wanted = {} if out_dtype is None else {"out_dtype": getattr(torch, out_dtype)}
    out, lse = flash_attn_combine(partial, partial_lse, **wanted)
    assert out.dtype == wanted.get("out_dtype", torch.float32)
    assert lse.shape == partial_lse.shape[1:] and out.shape == partial.shape[1:]
    check_merged(out.float().numpy(), lse.transpose(-1, -2).numpy(), outs, lses, out_dtype or "float32")
    place = torch.empty_like(out)
    assert flash_attn_combine(partial, partial_lse, place)[0] is place
    assert torch.equal(place, out)
    arguments = (partial, partial_lse.transpose(-1, -2), place, lse.transpose(-1, -2).clone())
    torch.library.opcheck(torch.ops.headrace.merge_states, arguments)


def test_combine_compiles_without_graph_breaks(torch, rng):
    from headrace.torch import flash_attn_combine

    outs, lses = states(rng, (2, 5, 3, 40), 4, "float32")
    arguments = torch.from_numpy(outs), torch.from_numpy(lses).transpose(-1, -2)
    got = torch.compile(flash_attn_combine, fullgraph=True, backend="aot_eager")(*arguments)
    for a, b in zip(got, flash_attn_combine(*arguments)):
        assert torch.equal(a, b)


def test_combine_errors(torch):
    from headrace.torch import flash_attn_combine

    outs, lses = torch.zeros(2, 1, 3, 4, 8), torch.zeros(2, 1, 3, 4)
    for arguments, kinds, text in [
        ((outs[0, 0], lses), ValueError, "out_partial.shape"),
        ((outs, lses.mT), ValueError, "lse_partial.shape"),
        ((outs.double(), lses), ValueError, "out_partial.dtype|dtype=f64"),
        ((outs, lses.half()), ValueError, r"lses\[0\].dtype=f16"),
        ((outs, lses, torch.zeros(1, 3, 4, 7)), ValueError, r"out.shape\[3\]=7"),
        ((outs, lses, outs[0], torch.half), ValueError, "out_dtype=torch.float16"),
        ((outs.clone().requires_grad_(), lses), NotImplementedError, "out_partial requires a gradient"),
        ((None, lses), TypeError, "out_partial is a"),
    ]:
        with pytest.raises(kinds, match=text):
            flash_attn_combine(*arguments)


def test_torch_merges_more_splits_than_one_call_takes(rng):
    torch = pytest.importorskip("torch")
    from headrace import torch as ht

    outs, lses = states(rng, (2, 5, 3, 8), 300, "float32")
    lses[:, 0, 1, 2] = -np.inf
    of_heads_last = torch.from_numpy(np.ascontiguousarray(np.swapaxes(lses, -1, -2)))
    out, lse = ht.flash_attn_combine(torch.from_numpy(outs), of_heads_last, out_dtype=torch.float32)
    check_merged(out.numpy(), lse.transpose(-1, -2).numpy(), outs, lses, "float32")
    given = torch.empty_like(out, dtype=torch.float16)
    assert ht.flash_attn_combine(torch.from_numpy(outs), of_heads_last, given)[0] is given
    assert torch.equal(given, out.half())
