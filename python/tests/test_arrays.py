"""headrace.attention on arrays, against the float64 reference."""

import ctypes
import itertools
import threading

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace import _plans

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")

FLOATS = ["float32", "float16", "float64"] + (["bfloat16"] if oracle.BF16 is not None else [])


def dtype_of(name):
    return oracle.BF16 if name == "bfloat16" else np.dtype(name)


def make(rng, shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype_of(dtype))


@st.composite
def problems(draw):
    kv_heads = draw(st.integers(1, 3))
    shape = {
        "batch": draw(st.integers(1, 3)),
        "sq": draw(st.integers(1, 40)),
        "sk": draw(st.integers(0, 70)),
        "heads": kv_heads * draw(st.integers(1, 4)),
        "kv_heads": kv_heads,
        "dim": draw(st.sampled_from([1, 3, 8, 16, 33, 64])),
        "dim_v": draw(st.sampled_from([1, 4, 16, 40])),
    }
    options = {"causal": draw(st.sampled_from([False, True, "bottom-right", "top-left"]))}
    if draw(st.booleans()):
        options["window"] = (draw(st.integers(-1, 20)), draw(st.integers(-1, 20)))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.5, 5.0, 50.0]))
    if draw(st.booleans()):
        options["softmax_scale"] = draw(st.sampled_from([0.05, 0.3, 1.0]))
    tensors = draw(st.sets(st.sampled_from(["bias", "mask", "alibi_slopes", "sinks", "tree_mask"])))
    return shape, options, tensors, draw(st.sampled_from(FLOATS)), draw(st.integers(0, 2**32))


def extra_tensors(rng, shape, names, dtype):
    def axis(size):
        return size if rng.integers(2) else 1

    full = (axis(shape["batch"]), axis(shape["heads"]), axis(shape["sq"]), axis(shape["sk"]))
    made = {}
    if "bias" in names:
        made["bias"] = make(rng, full, rng.choice([dtype, "float32"]))
    if "mask" in names:
        made["mask"] = rng.random(full) < 0.7
    if "alibi_slopes" in names:
        made["alibi_slopes"] = rng.random((shape["heads"],)).astype(np.float32)
    if "sinks" in names:
        made["sinks"] = make(rng, (shape["heads"],))
    if "tree_mask" in names and shape["sq"] <= shape["sk"]:
        words = -(-shape["sq"] // 32)
        made["tree_mask"] = rng.integers(0, 2**32, (shape["batch"], shape["sq"], words), dtype=np.uint32)
    return made


@given(problems())
def test_equals_the_reference(problem):
    shape, options, names, dtype, seed = problem
    rng = np.random.default_rng(seed)
    q = make(rng, (shape["batch"], shape["sq"], shape["heads"], shape["dim"]), dtype)
    k = make(rng, (shape["batch"], shape["sk"], shape["kv_heads"], shape["dim"]), dtype)
    v = make(rng, (shape["batch"], shape["sk"], shape["kv_heads"], shape["dim_v"]), dtype)
    options |= extra_tensors(rng, shape, names, dtype)
    out, lse = headrace.attention(q, k, v, **options, return_lse=True)
    expected, expected_lse, _ = oracle.attention(q, k, v, **options)
    assert out.dtype == q.dtype
    oracle.check_out(out, expected, dtype, bound=oracle.bound_of_out(q, k, v, dtype, **options))
    oracle.check_lse(lse, expected_lse)


@pytest.mark.parametrize("dtype", [name for name in FLOATS if name in ("float16", "bfloat16")])
@pytest.mark.parametrize("causal", [False, True])
def test_low_precision_is_no_worse_than_the_plain_computation(rng, dtype, causal):
    q, k, v = (make(rng, (2, 130, 4, 64), dtype) for _ in range(3))
    out = headrace.attention(q, k, v, causal=causal)
    expected, _, _ = oracle.attention(q, k, v, causal=causal)
    plain, _, _ = oracle.attention(q, k, v, causal=causal, round_to=dtype_of(dtype))
    oracle.check_out(out, expected, dtype, low_precision=plain)
    error, plain_error = (np.abs(np.asarray(x, np.float64) - expected).mean() for x in (out, plain))
    assert error <= 0.8 * plain_error


@given(
    lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=5),
    causal=st.sampled_from([False, True, "top-left"]),
    seed=st.integers(0, 2**32),
)
def test_a_ragged_batch_equals_its_sequences(lengths, causal, seed):
    rng = np.random.default_rng(seed)
    cu_q, cu_k = (np.cumsum([0, *side], dtype=np.int32) for side in zip(*lengths, strict=True))
    q, k, v = make(rng, (cu_q[-1], 4, 16)), make(rng, (cu_k[-1], 2, 16)), make(rng, (cu_k[-1], 2, 8))
    out, lse = headrace.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=causal, return_lse=True)
    expected, expected_lse = oracle.ragged(q, k, v, cu_q, cu_k, causal=causal)
    oracle.check_out(out, expected, "float32")
    oracle.check_lse(lse, expected_lse)


def test_layout_bhsd_is_a_view(rng):
    q, k, v = make(rng, (2, 5, 4, 16)), make(rng, (2, 9, 2, 16)), make(rng, (2, 9, 2, 24))
    expected = headrace.attention(q, k, v, causal=True)
    out = headrace.attention(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), causal=True, layout="bhsd")
    assert out.shape == (2, 4, 5, 24)
    assert np.array_equal(out.transpose(0, 2, 1, 3), expected)


def test_any_stride_gives_the_same_bits(rng):
    q, k, v = (make(rng, (2, 12, 4, 16)) for _ in range(3))
    expected = headrace.attention(q, k, v)
    padded = np.full((2, 24, 5, 32), np.nan, np.float32)
    padded[:, ::2, :4, :16] = q
    backwards = np.ascontiguousarray(k[:, ::-1])[:, ::-1]
    assert backwards.strides[1] < 0
    assert np.array_equal(headrace.attention(padded[:, ::2, :4, :16], backwards, v), expected)
    one = np.broadcast_to(k[:1, :, :1], k.shape)
    assert one.strides[0] == one.strides[2] == 0
    assert np.array_equal(headrace.attention(q, one, v), headrace.attention(q, one.copy(), v))


def test_out_is_written_where_it_lies(rng):
    q, k, v = (make(rng, (1, 6, 2, 8)) for _ in range(3))
    room = np.zeros((1, 6, 4, 8), np.float32)
    out = room[:, :, ::2]
    assert headrace.attention(q, k, v, out=out) is out
    assert np.array_equal(out, headrace.attention(q, k, v))
    assert not room[:, :, 1::2].any()


def test_lse_and_probs_are_written_where_they_lie(rng):
    q, k, v = (make(rng, (2, 7, 2, 8)) for _ in range(3))
    lse, probs = np.zeros((2, 2, 7, 2), np.float32)[..., 0], np.zeros((2, 2, 7, 7), np.float32)
    results = headrace.attention(q, k, v, lse=lse, probs=probs)
    assert results[1] is lse and results[2] is probs
    for got, expected in zip(results, headrace.attention(q, k, v, return_lse=True, return_probs=True), strict=True):
        assert np.array_equal(got, expected)
    assert len(headrace.attention(q, k, v, lse=lse)) == 2


def test_probs_are_the_softmax(rng):
    q, k, v = (make(rng, (2, 7, 2, 8)) for _ in range(3))
    out, probs = headrace.attention(q, k, v, causal=True, return_probs=True)
    _, _, expected = oracle.attention(q, k, v, causal=True)
    assert np.abs(probs - expected).max() < 1e-6
    assert np.abs(np.einsum("bhij,bjhd->bihd", probs, v) - out).max() < 1e-5


def test_dropout_is_a_function_of_its_seed(rng):
    q, k, v = (make(rng, (1, 64, 2, 16)) for _ in range(3))
    arguments = {"dropout_p": 0.25, "return_probs": True}
    _, first = headrace.attention(q, k, v, **arguments, dropout_seed=7, dropout_offset=2**63)
    _, again = headrace.attention(q, k, v, **arguments, dropout_seed=7, dropout_offset=2**63)
    _, other = headrace.attention(q, k, v, **arguments, dropout_seed=8, dropout_offset=2**63)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert abs((first == 0).mean() - 0.25) < 0.02


def test_a_row_without_keys_is_zero(rng):
    q, k, v = make(rng, (1, 4, 1, 8)), make(rng, (1, 2, 1, 8)), make(rng, (1, 2, 1, 8))
    out, lse = headrace.attention(q, k, v, causal=True, return_lse=True)
    assert not out[:, :2].any()
    assert np.isneginf(lse[..., :2]).all()
    assert np.isfinite(lse[..., 2:]).all()
    assert out[:, 2:].all()


def test_concurrent_calls_are_independent(rng):
    inputs = [[make(rng, (1, 33, 2, 16)) for _ in range(3)] for _ in range(4)]
    expected = [headrace.attention(*x) for x in inputs]
    wrong = []

    def work(i):
        for _ in range(50):
            if not np.array_equal(headrace.attention(*inputs[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def forward_call(q, k, v):
    return lambda: (headrace.attention(q, k, v),)


def backward_call(q, k, v):
    out, lse = headrace.attention(q, k, v, return_lse=True)
    return lambda: headrace.attention_backward(q, k, v, out, lse, q)[:3]


def torch_call(q, k, v):
    torch = pytest.importorskip("torch")
    import headrace.torch as ht

    tensors = [torch.from_numpy(x) for x in (q, k, v)]

    def call():
        torch.manual_seed(1)
        return (ht.attention(*tensors, dropout_p=0.5).numpy(),)

    return call


@pytest.mark.parametrize("make_call", [forward_call, backward_call, torch_call])
def test_a_call_within_a_call_has_arguments_of_its_own(rng, monkeypatch, make_call):
    """As from another thread or a finalizer: the outer call has written its addresses and has not run yet."""
    outer, *others = (make_call(*(make(rng, (1, 33, 2, 16)) for _ in range(3))) for _ in range(5))
    expected = [call() for call in (outer, *others)]
    waiting, results = iter(others), []
    set_dropout = _plans.Block.set_dropout

    def interrupted(block, seed, offset):
        set_dropout(block, seed, offset)
        results.extend(call() for call in itertools.islice(waiting, 1))

    monkeypatch.setattr(_plans.Block, "set_dropout", interrupted)
    results.append(outer())  # the innermost call is the first to end
    assert len(results) == len(expected)
    for got, wanted in zip(reversed(results), expected, strict=True):
        assert all(map(np.array_equal, got, wanted))


# ---- other libraries' arrays ----


class Exporter:
    """An array of a library that only supports DLPack."""

    def __init__(self, array, is_old=False):
        self.array, self.is_old = array, is_old
        self.streams = []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **others):
        self.streams.append(stream)
        if self.is_old and others:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(stream=stream, **others)


needs_flags = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="this NumPy exports no flags: it is older than DLPack 1.0"
)


@pytest.mark.parametrize("is_old", [False, True])
def test_dlpack_arrays_are_read_where_they_lie(rng, is_old):
    q, k, v = (make(rng, (2, 5, 2, 8)) for _ in range(3))
    exported = [Exporter(x, is_old) for x in (q, k, v)]
    out = headrace.attention(*exported, causal=True)
    assert np.array_equal(out, headrace.attention(q, k, v, causal=True))
    assert all(x.streams and set(x.streams) == {None} for x in exported)


def test_dlpack_outputs_are_written(rng):
    q, k, v = (make(rng, (1, 5, 2, 8)) for _ in range(3))
    out = np.zeros_like(q)
    headrace.attention(q, k, v, out=Exporter(out))
    assert np.array_equal(out, headrace.attention(q, k, v))


def test_a_borrowed_array_is_given_back(rng):
    q, k, v = (make(rng, (1, 5, 2, 8)) for _ in range(3))
    import sys

    before = sys.getrefcount(q)
    for _ in range(10):
        headrace.attention(Exporter(q), k, v)
    assert sys.getrefcount(q) == before


@needs_flags
def test_a_read_only_dlpack_array_is_no_output(rng):
    q, k, v = (make(rng, (1, 5, 2, 8)) for _ in range(3))
    out = np.zeros_like(q)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only: an output must be writable"):
        headrace.attention(q, k, v, out=Exporter(out))
    with pytest.raises(ValueError, match="out: its library does not export it: .*read"):
        headrace.attention(q, k, v, out=Exporter(out, is_old=True))
    assert np.array_equal(headrace.attention(Exporter(out), k, v), headrace.attention(out, k, v)), "it may be read"


@needs_flags
def test_an_output_that_is_exported_as_a_copy_is_refused(rng):
    class Copying(Exporter):
        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options, copy=True)

    q, k, v = (make(rng, (1, 5, 2, 8)) for _ in range(3))
    with pytest.raises(ValueError, match="out: its library exports a copy: must be the array itself"):
        headrace.attention(q, k, v, out=Copying(np.zeros_like(q)))
    assert np.array_equal(headrace.attention(Copying(q), k, v), headrace.attention(q, k, v))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layout": "bhsd"},
        {"softmax_scale": 0.3},
        {"causal": "top-left"},
        {"window": (1, 2)},
        {"softcap": 2.0},
        {"dropout_p": 0.5, "dropout_seed": 3, "dropout_offset": 4},
        {"dropout_p": 0.5, "dropout_seed": 4, "dropout_offset": 3},
        {"num_splits": 2},
        {"return_lse": True},
        {"return_probs": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_torch_tensors_go_to_torch(rng, options):
    torch = pytest.importorskip("torch")
    q, k, v = (make(rng, (1, 5, 5, 8)) for _ in range(3))
    results = headrace.attention(*(torch.from_numpy(x) for x in (q, k, v)), **options)
    expected = headrace.attention(q, k, v, **options)
    if not isinstance(expected, tuple):
        results, expected = (results,), (expected,)
    for result, array in zip(results, expected, strict=True):
        assert isinstance(result, torch.Tensor)
        assert np.array_equal(result.numpy(), array)


# ---- explain and supports ----


def spec(*shape, dtype="bf16"):
    return headrace.TensorSpec(shape, dtype)


def test_explain_describes_absent_machines():
    text = headrace.explain(
        spec(1, 4096, 32, 128), spec(1, 4096, 8, 128), spec(1, 4096, 8, 128), causal=True, device="cpu:avx512:16"
    )
    assert "causal bottom-right" in text
    assert "32 heads (8 kv), head_dim 128" in text
    assert "cpu_avx512_fwd" in text and "-> selected" in text
    assert "16 threads" in text


def test_predict_counts_work_and_says_why_there_is_no_time():
    q, k = spec(2, 1024, 8, 64, dtype="f32"), spec(2, 1024, 4, 64, dtype="f32")
    found = headrace.predict(q, k, k, device="cpu:avx2:2")
    assert found.flops == 4 * 64 * 2 * 8 * 1024**2 and found.exps == 2 * 8 * 1024**2
    assert found.bytes == 4 * (2 * 2 * 1024 * 8 * 64 + 2 * 2 * 1024 * 4 * 64)
    assert found.seconds == 0 and found.parts == {} and "headrace roofline" in found.reason
    assert found.text in headrace.explain(q, k, k, device="cpu:avx2:2")
    q = spec(8, 2048, 16, 128)
    try:
        found = headrace.predict(q, q, q, device="h200")
    except NotImplementedError:
        return  # a build without CUDA
    assert found.seconds == pytest.approx(sum(found.parts.values())) and found.bound == "tensor cores"
    assert 0.9 < found.balance <= 1 and found.ctas == 1 and found.num_slots == 132


def test_explain_uses_strides_and_extras(rng):
    q = make(rng, (2, 3, 4, 16))
    text = headrace.explain(q, q, q, bias=spec(2, 1, 3, 3, dtype="f32"), sinks=spec(4, dtype="f32"), return_lse=True)
    assert "bias f32" in text and "sinks" in text and "lse" in text
    text = headrace.explain(q, q, q, layout="bhsd")
    assert "seqlen_q 4" in text and "3 heads" in text


def test_explain_and_supports_cover_the_backward():
    q, k, bias = spec(2, 32, 1024, 128), spec(2, 8, 1024, 128), spec(1, 1, 1, 1024)
    text = headrace.explain(
        q, k, k, backward=True, deterministic=True, causal=True, bias=bias, sinks=spec(32, dtype="f32"),
        layout="bhsd", return_lse=True, return_probs=True, device="cpu:avx512:16",
    )  # fmt: skip
    assert ", backward" in text and "32 heads (8 kv)" in text and "seqlen_q 1024" in text
    assert all(name in text for name in ("dlse", "dbias", "dsinks", "cpu_avx512_bwd: -> selected"))
    text = headrace.explain(q, k, k, backward=True, layout="bhsd")
    assert not any(name in text for name in ("dlse", "dbias", "dsinks"))
    ragged, lengths = spec(300, 4, 64), spec(3, dtype="i32")
    options = dict(cu_seqlens_q=lengths, cu_seqlens_k=lengths, max_seqlen_q=200, max_seqlen_k=200, device="cpu:avx2")
    assert headrace.supports(ragged, ragged, ragged, backward=True, **options).kernel == "cpu_avx2_bwd"
    f64 = spec(1, 16, 2, 64, dtype="f64")
    no = headrace.supports(f64, f64, f64, backward=True, device="cpu:avx2", strict_fallback=True)
    assert not no and "f64" in no.reason


def test_supports_is_true_with_a_kernel_and_false_with_reasons():
    f32 = spec(1, 16, 2, 64, dtype="f32")
    yes = headrace.supports(f32, f32, f32, device="cpu:avx2")
    assert yes and yes.kernel == "cpu_avx2_fwd" and not yes.is_fallback and yes.reason == ""
    f64 = spec(1, 16, 2, 64, dtype="f64")
    fallback = headrace.supports(f64, f64, f64, device="cpu:avx2")
    assert fallback and fallback.is_fallback
    no = headrace.supports(f64, f64, f64, device="cpu:avx2", strict_fallback=True)
    assert not no and "f64" in no.reason and no.kernel == ""
    with pytest.raises(TypeError, match="unknown argument scale"):
        headrace.supports(f32, f32, f32, scale=1.0)


def test_a_fallback_warns_once_per_kind_of_problem(rng):
    headrace.cache_clear()
    q = make(rng, (1, 3, 1, 4), "float64")
    with pytest.warns(headrace.FallbackWarning, match="cpu_reference"):
        headrace.attention(q, q, q)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        headrace.attention(q, q, q)
        longer = make(rng, (2, 7, 1, 4), "float64")
        headrace.attention(longer, longer, longer)


def test_check_succeeds_on_the_cpu():
    assert headrace.check("cpu") is None


def test_structs_are_those_of_the_header():
    from headrace import _structs

    assert ctypes.sizeof(_structs.Tensor) == 120
    assert _structs.DATA_WORD["q"] == 1 and _structs.DATA_WORD["k"] == 16
