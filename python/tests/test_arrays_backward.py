"""attention_backward() against the gradients of the float64 reference."""

import inspect

import numpy as np
import oracle
import pytest
from test_arrays import FLOATS, Exporter, extra_tensors, make

import headrace

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")
SHAPE = {"batch": 2, "sq": 13, "sk": 21, "heads": 4, "kv_heads": 2, "dim": 16, "dim_v": 24}
# Relative to the largest element: P, dS and the result are rounded to the dtype.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 8e-3, "bfloat16": 6e-2}


def tensors(rng, dtype="float32", shape=SHAPE):
    q = make(rng, (shape["batch"], shape["sq"], shape["heads"], shape["dim"]), dtype)
    k = make(rng, (shape["batch"], shape["sk"], shape["kv_heads"], shape["dim"]), dtype)
    v = make(rng, (shape["batch"], shape["sk"], shape["kv_heads"], shape["dim_v"]), dtype)
    return q, k, v, make(rng, (*q.shape[:3], shape["dim_v"]), dtype)


def check(got, expected, dtype):
    for x, y in zip(got, expected, strict=True):
        assert (x is None) == (y is None)
        if y is not None:
            assert x.shape == y.shape
            tolerance = max(TOLERANCE[dtype], TOLERANCE[x.dtype.name])  # a bias may be f32 if q is f64
            assert np.abs(np.asarray(x, np.float64) - y).max() <= tolerance * np.abs(y).max()


OPTIONS = [
    {}, {"causal": True}, {"causal": "top-left"}, {"window": (4, 2)}, {"softcap": 2.0}, {"softmax_scale": 0.4},
    {"causal": True, "window": (3, -1), "softcap": 1.5},
]  # fmt: skip
EXTRAS = [
    (), ("bias",), ("mask",), ("alibi_slopes",), ("sinks",), ("tree_mask",), ("bias", "mask", "sinks", "alibi_slopes"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("extras", EXTRAS, ids="-".join)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("with_dlse", [False, True])
def test_equals_the_reference(rng, dtype, extras, options, with_dlse):
    q, k, v, dout = tensors(rng, dtype)
    options = {**options, **extra_tensors(rng, SHAPE, extras, dtype)}
    out, lse = headrace.attention(q, k, v, **options, return_lse=True)
    dlse = rng.standard_normal(lse.shape).astype(lse.dtype) if with_dlse else None
    got = headrace.attention_backward(q, k, v, out, lse, dout, dlse=dlse, **options)
    check(got, oracle.gradients(q, k, v, dout, dlse, **options), dtype)
    for gradient, like in zip(got, (q, k, v, options.get("bias"), options.get("sinks")), strict=True):
        assert gradient is None if like is None else gradient.dtype == like.dtype


def test_dropout_repeats_the_mask_of_the_forward(rng):
    q, k, v, dout = tensors(rng)
    arguments = {"dropout_p": 0.4, "dropout_seed": 2**63 + 5, "dropout_offset": 7, "causal": True}
    out, lse, probs = headrace.attention(q, k, v, **arguments, return_lse=True, return_probs=True)
    whole = oracle.attention(q, k, v, causal=True)[2]
    keep = np.where((probs == 0) & (whole > 0), 0, 65536 / round(0.6 * 65536))
    got = headrace.attention_backward(q, k, v, out, lse, dout, **arguments)
    check(got, oracle.gradients(q, k, v, dout, keep=keep, causal=True), "float32")
    other = headrace.attention_backward(q, k, v, out, lse, dout, **{**arguments, "dropout_seed": 6})
    assert not np.array_equal(other.dv, got.dv)


def test_a_ragged_batch_equals_its_sequences(rng):
    cu_q, cu_k = (np.array(x, np.int32) for x in ([0, 5, 5, 17], [0, 7, 10, 22]))
    q, k, v, dout = (make(rng, (n, heads, 16)) for n, heads in ((17, 4), (22, 2), (22, 2), (17, 4)))
    arguments = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": True}
    out, lse = headrace.attention(q, k, v, **arguments, return_lse=True)
    got = headrace.attention_backward(q, k, v, out, lse, dout, **arguments)
    for i in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        expected = oracle.gradients(q[None, rows], k[None, keys], v[None, keys], dout[None, rows], causal=True)
        for x, y, part in zip(got, expected, (rows, keys, keys), strict=False):
            assert np.abs(x[None, part] - y).max(initial=0) <= 2e-5 * np.abs(y).max(initial=0)


def test_layouts_and_outputs(rng):
    q, k, v, dout = tensors(rng)
    bias, sinks = make(rng, (1, 4, 1, 21)), make(rng, (4,))
    options = {"bias": bias, "sinks": sinks, "causal": True}
    out, lse = headrace.attention(q, k, v, **options, return_lse=True)
    wanted = headrace.attention_backward(q, k, v, out, lse, dout, **options)
    across = [x.transpose(0, 2, 1, 3) for x in (q, k, v, out, dout)]
    got = headrace.attention_backward(*across[:4], lse, across[4], **options, layout="bhsd")
    for name in got._fields:
        x, y = getattr(got, name), getattr(wanted, name)
        assert np.array_equal(x.transpose(0, 2, 1, 3) if name in ("dq", "dk", "dv") else x, y)
    rooms = {name: np.full((2, *x.shape), np.nan, x.dtype) for name, x in wanted._asdict().items()}
    outputs = {name: room[1] for name, room in rooms.items()}
    got = headrace.attention_backward(q, k, v, out, lse, dout, **options, **outputs)
    for name, room in rooms.items():
        assert getattr(got, name) is outputs[name]
        assert np.array_equal(room[1], getattr(wanted, name)) and np.isnan(room[0]).all()


@pytest.mark.parametrize("is_old", [False, True])
def test_dlpack_arrays_are_read_and_written_where_they_lie(rng, is_old):
    q, k, v, dout = tensors(rng)
    out, lse = headrace.attention(q, k, v, return_lse=True)
    wanted = headrace.attention_backward(q, k, v, out, lse, dout)
    exported = [Exporter(x, is_old) for x in (q, k, v, out, lse, dout)]
    dq = Exporter(np.zeros_like(q), is_old)
    got = headrace.attention_backward(*exported, dq=dq)
    assert got.dq is dq and np.array_equal(dq.array, wanted.dq)
    assert np.array_equal(got.dk, wanted.dk) and np.array_equal(got.dv, wanted.dv)


def test_rows_that_see_no_key_give_zero(rng):
    q, k, v, dout = tensors(rng)
    mask = np.zeros((2, 1, 13, 21), bool)
    out, lse = headrace.attention(q, k, v, mask=mask, return_lse=True)
    got = headrace.attention_backward(q, k, v, out, lse, dout, mask=mask, dlse=np.ones_like(lse))
    assert not any(x.any() for x in got[:3])


RULES = [
    ({"dout": np.ones((2, 13, 4, 23), "f")}, r"dout.shape\[3\]=23: must equal head_dim_v=24"),
    ({"dout": np.ones((2, 13, 4, 24), "d")}, r"dout.dtype=f64: must equal q.dtype=f32; convert dout"),
    ({"lse": np.ones((2, 4, 12), "f")}, r"lse.shape\[2\]=12: must equal seqlen_q=13"),
    ({"dlse": np.ones((2, 4, 12), "f")}, r"dlse.shape\[2\]=12: must equal seqlen_q=13"),
    ({"dq": np.ones((2, 13, 4, 15), "f")}, r"dq.shape\[3\]=15: must equal head_dim=16"),
    ({"dbias": np.ones((1, 1, 1, 1), "f")}, r"dbias: given without bias"),
    ({"dsinks": np.ones(4, "f")}, r"dsinks: given without sinks"),
    ({"lse": None}, r"lse is a NoneType"),
    ({"out": None}, r"out is a NoneType"),
]


@pytest.mark.parametrize(("changed", "text"), RULES, ids=[text[:24] for _, text in RULES])
def test_what_breaks_a_rule_is_named(rng, changed, text):
    q, k, v, dout = tensors(rng)
    out, lse = headrace.attention(q, k, v, return_lse=True)
    with pytest.raises((ValueError, TypeError), match=text):
        headrace.attention_backward(**{"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout, **changed})


def test_an_output_must_be_writable_and_apart(rng):
    q, k, v, dout = tensors(rng)
    out, lse = headrace.attention(q, k, v, return_lse=True)
    for name, like in (("dq", q), ("dk", k), ("dv", v)):
        with pytest.raises(ValueError, match=f"{name} overlaps {name[1]}"):
            headrace.attention_backward(q, k, v, out, lse, dout, **{name: like})
        fixed = np.empty_like(like)
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match=f"{name} is read-only"):
            headrace.attention_backward(q, k, v, out, lse, dout, **{name: fixed})


def test_pytorch_tensors_are_refused_with_the_remedy(rng):
    torch = pytest.importorskip("torch")
    x = torch.ones(1, 2, 1, 4)
    with pytest.raises(TypeError, match=r"q is a PyTorch tensor: .*headrace.torch.attention\(\) and backward"):
        headrace.attention_backward(x, x, x, x, x[..., 0], x)


def test_the_arguments_are_those_of_attention():
    forward, backward = (inspect.signature(f).parameters for f in (headrace.attention, headrace.attention_backward))
    of_forward_alone = {"num_splits", "strict_rows", "return_lse", "return_probs", "probs", "max_shared_prefix"}
    of_forward_alone |= {"block_table", "page_indptr", "seqused_k"}
    of_forward_alone |= {"k_scale", "v_scale", "k_recent", "v_recent", "recent_table"}
    assert forward.keys() - backward.keys() == of_forward_alone
    for name in forward.keys() & backward.keys() - {"out", "lse"}:
        assert forward[name].default == backward[name].default and forward[name].kind == backward[name].kind


def test_calls_without_scratch_memory_of_their_own_reach_the_backward_of_the_library(rng):
    """As on a GPU, where the library allocates it."""
    from headrace import _plans, _structs, _views

    q, k, v, dout = tensors(rng)
    out, lse = headrace.attention(q, k, v, return_lse=True)
    wanted = headrace.attention_backward(q, k, v, out, lse, dout)
    results = [np.zeros_like(x) for x in (q, k, v)]
    views = {n: _views.of(n, x).view for n, x in zip(("q", "k", "v", "out", "lse"), (q, k, v, out, lse), strict=True)}
    names = ("dout", "dq", "dk", "dv")
    gradients = {n: _views.of(n, x).view for n, x in zip(names, (dout, *results), strict=True)}
    plan = _plans.make(views, _plans.Options(), gradients=gradients)
    block = plan.take_block()
    for name, view in views.items():
        block.words[_structs.DATA_WORD[name]] = view.data
    for name, view in gradients.items():
        block.gradient_words[_structs.GRADIENT_WORD[name]] = view.data
    plan.run_alone(block, None)
    assert all(np.array_equal(x, y) for x, y in zip(results, wanted, strict=False))
