"""Every status of the library becomes a Python exception with the library's message."""

import ctypes

import numpy as np
import oracle
import pytest

import headrace
from headrace import _library, _plans, _structs


def arrays(dtype="float32", heads=4, dim=16):
    return tuple(np.ones((1, 5, h, dim), dtype) for h in (heads, 2, 2))


def attend(**changed):
    q, k, v = arrays()
    return headrace.attention(**{"q": q, "k": k, "v": v, **changed})


@pytest.mark.parametrize("name", ["dropout_seed", "dropout_offset"])
def test_a_dropout_word_has_64_bits(name):
    for word in (0, 1, 2**63 - 1, 2**63, 2**64 - 1, np.uint64(2**64 - 1)):
        attend(dropout_p=0.5, **{name: word})
    for word in (-1, -(2**64), 2**64, 2**64 + 1, 2**65):
        with pytest.raises(ValueError, match=rf"{name}={word}: must be 0 to 2\*\*64 - 1; pass {name} % 2\*\*64"):
            attend(dropout_p=0.5, **{name: word})
    for word in (0.5, "1", None):
        with pytest.raises(TypeError, match=f"{name}={word!r}: must be an integer"):
            attend(dropout_p=0.5, **{name: word})


RULES = [
    ({"k": np.ones((1, 5, 3, 16), "float32")}, r"v.shape\[2\]=2: must equal num_kv_heads=3 of k"),
    ({"k": np.ones((1, 5, 2, 16), "float16")}, r"k.dtype=f16: must equal q.dtype=f32, or be i8"),
    ({"q": np.ones((1, 5, 4, 16, 1), "float32")}, r"q.rank=5: must be 4"),
    ({"q": np.ones((1, 5, 3, 16), "float32")}, r"num_heads=3 .* must be a multiple of num_kv_heads"),
    ({"q": np.ones((1, 5, 4, 32), "float32")[..., ::2]}, r"q.strides\[3\]=2: must be 1"),
    ({"softmax_scale": 1e300}, r"softmax_scale=1e\+300: must be finite as f32; .* None for the default"),
    ({"softcap": -1.0}, r"softcap=-1: must be 0"),
    ({"dropout_p": 1.0}, r"dropout_p=1: must be in \[0, 1\)"),
    ({"num_splits": -1}, r"num_splits=-1: must not be negative"),
    ({"mask": np.ones((1, 1, 5, 5), "float32")}, r"mask.dtype=f32: must be bool"),
    ({"bias": np.ones((1, 1, 5, 4), "float32")}, r"bias.shape\[3\]=4: must equal seqlen_k=5"),
    ({"sinks": np.ones(3, "float32")}, r"sinks.shape\[0\]=3: must equal num_heads=4"),
    ({"alibi_slopes": np.ones(4, "float64")}, r"alibi_slopes.dtype=f64: must be f32"),
    ({"cu_seqlens_q": np.array([0, 5], "int32")}, r"cu_seqlens_k: not given, but the other one is"),
]


@pytest.mark.parametrize(("changed", "text"), RULES, ids=[text.split(":")[0][:24] for _, text in RULES])
def test_invalid_argument_is_a_value_error(changed, text):
    with pytest.raises(ValueError, match=text):
        attend(**changed)


PYTHON_RULES = [
    ({"causal": "left"}, ValueError, r"causal='left': must be False, True"),
    ({"window": 3}, ValueError, r"window=3: must be \(left, right\)"),
    ({"layout": "sbhd"}, ValueError, r"layout='sbhd': must be 'bshd'"),
    ({"num_splits": 2**40}, ValueError, r"num_splits=1099511627776: must be an integer of 32 bits"),
    ({"num_splits": 1.5}, ValueError, r"num_splits=1.5: must be an integer"),
    ({"q": np.ones((1, 5, 4, 16), "int64")}, ValueError, r"q.dtype=int64: must be float32"),
    ({"q": np.ones((1, 5, 4, 16), ">f4")}, ValueError, r"q.dtype=>f4: must be .* in the byte order"),
    ({"q": [[1.0]]}, TypeError, r"q is a list: must be a NumPy array or offer __dlpack__"),
    ({"k": None}, TypeError, r"k is a NoneType"),
    ({"q": np.ones((1,) * 8, "float32")}, ValueError, r"q has 8 axes: must have at most 6"),
]


@pytest.mark.parametrize(("changed", "error", "text"), PYTHON_RULES, ids=[text[:20] for _, _, text in PYTHON_RULES])
def test_rules_that_python_checks_have_clear_errors(changed, error, text):
    with pytest.raises(error, match=text):
        attend(**changed)


def test_an_output_must_be_writable_and_apart():
    q, k, v = arrays()
    out = np.empty_like(q)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        headrace.attention(q, k, v, out=out)
    with pytest.raises(ValueError, match="out overlaps q"):
        headrace.attention(q, k, v, out=q)


def test_unsupported_is_not_implemented_with_the_reasons():
    q, k, v = arrays(dim=600)
    with pytest.raises(NotImplementedError, match="head_dim=600: the kernels support 1 to 576"):
        headrace.attention(q, k, v)
    q, k, v = arrays("float64")
    with pytest.raises(NotImplementedError, match="strict_fallback=1: only the slow fallback") as caught:
        headrace.attention(q, k, v, strict_fallback=True)
    assert "cpu_avx2_fwd: " in str(caught.value)


def test_out_of_memory_is_a_memory_error():
    """Through the one-call forward, which allocates: zero strides allow tensors larger than any memory."""
    element = np.zeros(256, "float32")
    shapes = {"q": (2**16, 1, 2**14, 256), "k": (2**16, 2**19, 2**14, 256), "v": (2**16, 2**19, 2**14, 256)}
    views = {
        name: _plans.View(element.ctypes.data, _structs.F32, _structs.CPU, 0, shape, (0, 0, 0, 1))
        for name, shape in shapes.items()
    }
    strides = (2**22, 2**22, 2**8, 1)
    options = _plans.Options(num_splits=2**12)
    views["out"] = _plans.View(1 << 50, _structs.F32, _structs.CPU, 0, shapes["q"], strides)
    plan = _plans.make(views, options)
    assert plan.workspace_bytes > 1 << 48, "more than the address space: even untouched memory cannot be allocated"
    tensors = _plans.pack_tensors(views)
    options = _plans.pack_options(options)
    status = _library.LIBRARY.headrace_attention_forward(
        ctypes.addressof(tensors), ctypes.addressof(options), None, 0, None
    )
    assert status == _structs.OUT_OF_MEMORY
    with pytest.raises(MemoryError, match="workspace: [0-9]+ bytes could not be allocated"):
        _library.check(status)


def test_a_workspace_that_does_not_fit_is_a_memory_error():
    with pytest.raises(MemoryError, match="workspace: 4611686018427387904 bytes could not be allocated"):
        _plans._allocate(1 << 62)


def test_device_errors_are_runtime_errors():
    with pytest.raises((RuntimeError, ValueError)) as caught:
        headrace.check("cuda:4096")
    if not isinstance(caught.value, ValueError):
        assert "cuda" in str(caught.value).lower()
    with pytest.raises(ValueError, match="device='gpu': must be 'cpu' or 'cuda:N'"):
        headrace.check("gpu")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (_structs.INVALID_ARGUMENT, ValueError),
        (_structs.UNSUPPORTED, NotImplementedError),
        (_structs.OUT_OF_MEMORY, MemoryError),
        (_structs.DEVICE_ERROR, RuntimeError),
        (_structs.IO_ERROR, RuntimeError),
        (_structs.INTERNAL, RuntimeError),
        (_structs.BUSY, headrace.BusyError),
    ],
)
def test_every_status_has_its_exception(status, error):
    """With a real error message of the library on this thread."""
    with pytest.raises(ValueError, match="causal="):
        headrace.explain(*arrays(), causal="no")
    assert _library.LIBRARY.headrace_plan_attention(None, None, None) == _structs.INVALID_ARGUMENT
    with pytest.raises(error) as caught:
        _library.check(status)
    assert type(caught.value) is error
    assert str(caught.value) == _library.LIBRARY.headrace_last_error().decode() != ""


def test_a_failed_call_leaves_the_next_one_whole(rng):
    q, k, v = (rng.standard_normal((1, 6, 2, 8)).astype(np.float32) for _ in range(3))
    cu = np.array([0, 6], np.int32)
    flat = [x[0] for x in (q, k, v)]
    before = headrace.attention(*flat, cu_seqlens_q=cu, cu_seqlens_k=cu)
    bad = np.array([0, 9], np.int32)
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        headrace.attention(*flat, cu_seqlens_q=bad, cu_seqlens_k=cu, max_seqlen_q=6)
    assert np.array_equal(headrace.attention(*flat, cu_seqlens_q=cu, cu_seqlens_k=cu), before)
    oracle.check_out(before, oracle.attention(q, k, v)[0][0], "float32")


# ---- PyTorch ----


def test_arguments_of_flash_attention_3_that_would_change_the_result_are_refused():
    torch = pytest.importorskip("torch")
    from headrace import torch as ht

    q = torch.ones(1, 4, 2, 8)
    for name in ("q_descale", "k_descale", "v_descale"):
        with pytest.raises(ValueError, match=f"{name}: given, but q, k and v are torch.float32, no codes"):
            ht.flash_attn_func(q, q, q, **{name: torch.ones(1, 2)})
    codes = q.to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="dtypes of q, k and v: .*: must all be float8_e4m3fn, or none"):
        ht.flash_attn_func(codes, q, q)
    with pytest.raises(ValueError, match=r"k_descale.shape=\(2, 2\): must be \[batch, num_kv_heads\], with batch=1"):
        ht.flash_attn_func(codes, codes, codes, k_descale=torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"qv.shape=\(1, 4, 2, 7\): must be \(1, 4, 2, 8\)"):
        ht.flash_attn_func(q, q, q, qv=q[..., :7])
    with pytest.raises(NotImplementedError, match="sm_margin"):
        ht.flash_attn_func(q, q, q, sm_margin=1)
    with pytest.raises(NotImplementedError, match="qv: the cache would be copied"):
        ht.flash_attn_with_kvcache(q, q, q, qv=q)
    assert ht.flash_attn_func(q, q, q, pack_gqa=True, num_splits=2, sm_margin=0).shape == q.shape
    cu = torch.tensor([0, 4], dtype=torch.int32)
    table, used = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([4], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="block_table with qv"):
        ht.flash_attn_varlen_func(q[0], q, q, cu, None, 4, 4, block_table=table, seqused_k=used, qv=q[0])


def test_pytorch_errors_are_the_same(recwarn):
    torch = pytest.importorskip("torch")
    from headrace import torch as ht

    q, k = torch.ones(1, 5, 4, 16), torch.ones(1, 5, 3, 16)
    with pytest.raises(ValueError, match="must be a multiple of num_kv_heads"):
        ht.flash_attn_func(q, k, k)
    with pytest.raises(ValueError, match="q.dtype=torch.int64: must be float32"):
        ht.flash_attn_func(q.long(), q, q)
    with pytest.raises(NotImplementedError, match="head_dim=600"):
        ht.flash_attn_func(*(torch.ones(1, 2, 1, 600) for _ in range(3)))
    with pytest.raises(NotImplementedError, match="q is on meta: headrace has kernels for the CPU and CUDA"):
        from headrace.torch import _eager

        _eager.view_of("q", q.to("meta"))
    with pytest.raises(RuntimeError, match="attn_mask with is_causal=True: must not be given together"):
        ht.scaled_dot_product_attention(q, q, q, torch.ones(4, 4), is_causal=True)
    with pytest.raises(ValueError, match="qkv.shape"):
        ht.flash_attn_qkvpacked_func(q)
    with pytest.raises(ValueError, match="kv.shape"):
        ht.flash_attn_kvpacked_func(q, q)
