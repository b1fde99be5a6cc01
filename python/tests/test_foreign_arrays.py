"""Arrays that only support DLPack or the CUDA array interface, in memory owned by PyTorch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_data import DEVICES, DTYPES, make, qkv, same_bits  # noqa: E402

import headrace  # noqa: E402
from headrace import _views  # noqa: E402
from headrace import torch as ht  # noqa: E402

GPU = [DEVICES[1]]
OLD_OR_NEW = pytest.mark.parametrize("is_old", [False, True], ids=["dlpack 1", "dlpack 0.8"])


class DLPackArray:
    def __init__(self, tensor, is_old=False):
        self.tensor, self.is_old = tensor, is_old
        self.streams = []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **versions):
        self.streams.append(stream)
        if self.is_old and versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.tensor.__dlpack__(stream=stream, **versions)


class CudaArray:
    """`changed`: entries of the interface that differ from PyTorch's."""

    def __init__(self, tensor, **changed):
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, **changed}


class FakeCudaArray:
    """An array that labels its host memory as a GPU's: for calls that are refused before any access."""

    def __init__(self, shape=(1, 4, 2, 8), typestr="<f4", is_read_only=False, **changed):
        self.memory = np.zeros(shape, typestr)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (self.memory.ctypes.data, is_read_only),
            "version": 3,
            **changed,
        }


def address(stream):
    return stream.cuda_stream


# ---- DLPack ----


@OLD_OR_NEW
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_dlpack_arrays_are_read_and_written_where_they_lie(device, dtype, is_old):
    q, k, v = qkv(device, dtype, sq=70, sk=90)
    out, lse = torch.zeros_like(q), torch.zeros(2, 4, 70, device=device)
    exported = [DLPackArray(t, is_old) for t in (q, k, v, out, lse)]
    results = headrace.attention(*exported[:3], causal=True, out=exported[3], lse=exported[4])
    assert results[0] is exported[3] and results[1] is exported[4]
    for got, expected in zip((out, lse), ht.attention(q, k, v, causal=True, return_lse=True), strict=True):
        assert same_bits(got, expected)
    wanted = None if device == "cpu" else 1  # CUDA's default stream
    assert all(x.streams and set(x.streams) == {wanted} for x in exported)


@pytest.mark.parametrize("device", DEVICES)
def test_any_stride_and_offset_of_dlpack(device):
    q, k, v = qkv(device)
    room = torch.zeros(q.shape[0], q.shape[2], q.shape[1] + 2, q.shape[3], device=device)
    out = room[:, :, 1:-1]
    headrace.attention(*(DLPackArray(t.transpose(1, 2)) for t in (q, k, v)), layout="bhsd", out=DLPackArray(out))
    assert same_bits(out.transpose(1, 2), ht.attention(q, k, v))
    assert not room[:, :, 0].any() and not room[:, :, -1].any()


@pytest.mark.parametrize("device", DEVICES)
def test_ragged_batches_of_dlpack_arrays(device):
    q, k, v = (make((12, heads, 16), device=device) for heads in (4, 2, 2))
    cu = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    out = torch.zeros_like(q)
    arguments = {"cu_seqlens_q": DLPackArray(cu), "cu_seqlens_k": DLPackArray(cu), "out": DLPackArray(out)}
    if device != "cpu":
        with pytest.raises(ValueError, match="max_seqlen_q: not given; .*cu_seqlens_q is not in host memory"):
            headrace.attention(*map(DLPackArray, (q, k, v)), **arguments)
        arguments |= {"max_seqlen_q": 7, "max_seqlen_k": 7}
    headrace.attention(*map(DLPackArray, (q, k, v)), **arguments)
    assert same_bits(out, ht.flash_attn_varlen_func(q, k, v, cu, cu, 7, 7))


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_that_needs_scratch_memory_gets_it(device):
    """Split keys: partial results are stored before they are merged."""
    q, k, v = qkv(device, sq=1, sk=300)
    out = torch.zeros_like(q)
    for _ in range(3):
        headrace.attention(*map(DLPackArray, (q, k, v)), num_splits=3, out=DLPackArray(out))
    assert same_bits(out, ht.attention(q, k, v, num_splits=3))


def test_the_library_allocates_for_a_plan_that_runs_alone():
    from headrace import _plans

    q, k, v = qkv(sq=1, sk=300)
    out = torch.zeros_like(q)
    views = {n: _views.of(n, DLPackArray(t)).view for n, t in (("q", q), ("k", k), ("v", v), ("out", out))}
    plan = _plans.make(views, _plans.Options(num_splits=3))
    assert plan.workspace_bytes > 0
    plan.run_alone(plan.take_block(), None)
    assert same_bits(out, ht.attention(q, k, v, num_splits=3))
    assert len(plan.blocks) == 1, "the block came back"


def test_what_dlpack_cannot_say_is_a_value_error():
    x = make((3, 4)).requires_grad_()
    with pytest.raises((ValueError, RuntimeError), match="gradient") as caught:
        headrace.softmax(x, out=torch.empty(3, 4))
    if isinstance(caught.value.__cause__, BufferError):  # old PyTorch raises its own error
        assert str(caught.value).startswith("x: its library does not export it: ")
    with pytest.raises(ValueError, match=r"x: its DLPack dtype \(code 5, 64 bits, 1 lanes\) must be float32"):
        headrace.softmax(DLPackArray(torch.zeros(3, dtype=torch.complex64)))


@pytest.mark.parametrize("device", GPU)
def test_the_producer_is_told_the_stream_of_the_call(device):
    q, k, v = qkv(device, torch.float16, sq=70, sk=70)
    expected = ht.attention(q, k, v)
    late, out = torch.zeros_like(q), torch.zeros_like(q)
    exported = [DLPackArray(t) for t in (late, k, v, out)]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)  # q is ready long after the call
    late.copy_(q)
    headrace.attention(*exported[:3], out=exported[3], stream=address(stream))
    torch.cuda.current_stream().wait_stream(stream)
    assert same_bits(out, expected)
    assert all(set(x.streams) == {address(stream)} for x in exported)


@pytest.mark.parametrize("device", GPU)
def test_scratch_memory_belongs_to_the_stream_of_the_call(device):
    streams = [torch.cuda.Stream() for _ in range(2)]
    calls = [qkv(device, sq=1, sk=3000 + 100 * i) for i in range(2)]
    expected = [ht.attention(*call, num_splits=4) for call in calls]
    outs = [torch.zeros_like(call[0]) for call in calls]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, call, out in zip(streams, calls, outs, strict=True):
            headrace.attention(
                *map(DLPackArray, call), num_splits=4, out=DLPackArray(out), stream=address(stream)
            )
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(outs, expected, strict=True))


@pytest.mark.parametrize("device", GPU)
def test_questions_make_no_stream_wait(device):
    exported = [DLPackArray(t) for t in qkv(device, torch.bfloat16)]
    support = headrace.supports(*exported, causal=True)
    assert support and support.kernel.startswith("cuda_")
    assert "cuda_simple" in headrace.explain(*exported, causal=True)
    assert all(set(x.streams) == {-1} for x in exported)


# ---- the CUDA array interface ----


def test_the_cuda_array_interface_becomes_a_view():
    array = FakeCudaArray((3, 2), "<f2", strides=(8, 2))
    data = array.memory.ctypes.data
    assert _views.of("x", array).view == (data, 1, 1, 0, (3, 2), (4, 1))
    assert _views.of("x", FakeCudaArray((2, 3, 4), "|b1")).view[1:] == (6, 1, 0, (2, 3, 4), (12, 4, 1))
    assert _views.of("x", FakeCudaArray((0, 4), data=(0, False))).view.data == 0


def test_what_the_cuda_array_interface_may_not_say():
    q = FakeCudaArray()
    with pytest.raises(ValueError, match="out: must be given for a FakeCudaArray on a GPU"):
        headrace.attention(q, q, q)
    with pytest.raises(ValueError, match="lse: must be given for a FakeCudaArray on a GPU .*pass lse"):
        headrace.attention(q, q, q, out=FakeCudaArray(), return_lse=True)
    with pytest.raises(ValueError, match="out is read-only: an output must be writable"):
        headrace.attention(q, q, q, out=FakeCudaArray(is_read_only=True))
    with pytest.raises(ValueError, match="k: its CUDA array interface has a mask: must have none"):
        headrace.attention(q, FakeCudaArray(mask=FakeCudaArray(typestr="|b1")), q, out=FakeCudaArray())
    with pytest.raises(ValueError, match="k is on cuda:0: must be on cpu:0 like q"):
        headrace.attention(q.memory, q, q.memory)
    with pytest.raises(ValueError, match="k.dtype=complex64: must be float32"):
        headrace.attention(q, FakeCudaArray(typestr="<c8"), q, out=FakeCudaArray())
    with pytest.raises(ValueError, match="k: strides of .* are not multiples of its 4-byte elements"):
        headrace.attention(q, FakeCudaArray(strides=(256, 62, 32, 4)), q, out=FakeCudaArray())
    cu = FakeCudaArray((2,), "<i4")
    flat = FakeCudaArray((4, 2, 8))
    with pytest.raises(ValueError, match="max_seqlen_q: not given; .*cu_seqlens_q is not in host memory"):
        headrace.attention(flat, flat, flat, cu_seqlens_q=cu, cu_seqlens_k=cu, out=FakeCudaArray((4, 2, 8)))


def test_a_call_runs_on_the_stream_that_its_arrays_are_in_use_on():
    """Their interface may name a stream: consumers synchronize with it or enqueue on it."""
    used = FakeCudaArray(stream=0x70)
    assert _views.stream_of(used) == 0x70
    assert _views.stream_of(FakeCudaArray()) is _views.stream_of(np.zeros(3)) is None
    for stream, array in [(0x70, used), (None, FakeCudaArray(stream=1)), (1, FakeCudaArray(stream=1)), (-1, used)]:
        assert _views.of("k", array, stream).view.shape == (1, 4, 2, 8)
    with pytest.raises(ValueError, match="k: in use on stream 0x70, and the call runs on stream 0x1: .* stream=0x70"):
        headrace.attention(FakeCudaArray(), used, used, out=FakeCudaArray())
    with pytest.raises(ValueError, match="q: in use on stream 0x70, and the call runs on stream 0x80"):
        headrace.attention(used, used, used, out=FakeCudaArray(), stream=0x80)
    with pytest.raises(ValueError, match="k: in use on stream 0x90, and the call runs on stream 0x70"):
        headrace.attention(used, FakeCudaArray(stream=0x90), used, out=FakeCudaArray())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("device", GPU)
def test_the_cuda_array_interface_is_read_and_written_where_it_lies(device, dtype):
    q, k, v = qkv(device, dtype, sq=70, sk=90)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)  # with strides
    out = torch.zeros_like(q)
    lse, probs = torch.zeros(2, 4, 70, device=device), torch.zeros(2, 4, 70, 90, device=device)
    array = CudaArray(out)
    assert headrace.attention(*map(CudaArray, (q, k, v)), causal=True, out=array) is array
    assert same_bits(out, ht.attention(q, k, v, causal=True))
    outputs = {"out": array, "lse": CudaArray(lse), "probs": CudaArray(probs)}
    headrace.attention(*map(CudaArray, (q, k, v)), causal=True, **outputs)
    wanted = ht.attention(q, k, v, causal=True, return_lse=True, return_probs=True)
    assert all(same_bits(got, expected) for got, expected in zip((out, lse, probs), wanted, strict=True))


@pytest.mark.parametrize("device", GPU)
def test_the_stream_of_the_interface_orders_the_call(device):
    q, k, v = qkv(device, torch.float16, sq=70, sk=70)
    expected = ht.attention(q, k, v)
    late, out = torch.zeros_like(q), torch.zeros_like(q)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(q)
    arrays = [CudaArray(t, stream=address(stream)) for t in (late, k, v, out)]
    headrace.attention(*arrays[:3], out=arrays[3])
    torch.cuda.current_stream().wait_stream(stream)
    assert same_bits(out, expected)


@pytest.mark.parametrize("device", GPU)
def test_one_call_may_mix_protocols(device):
    q, k, v = qkv(device)
    bias = make((1, 4, 17, 29), device=device)
    out = torch.zeros_like(q)
    headrace.attention(DLPackArray(q), CudaArray(k), DLPackArray(v), bias=bias, out=CudaArray(out))
    assert same_bits(out, ht.attention(q, k, v, bias=bias))


@pytest.mark.parametrize("device", GPU)
def test_host_memory_that_claims_a_gpu_is_refused(device):
    q = FakeCudaArray()
    with pytest.raises(ValueError, match=r"q\.data=.*: is host memory, not of cuda:0"):
        headrace.attention(q, FakeCudaArray(), FakeCudaArray(), out=FakeCudaArray())


@pytest.mark.parametrize("device", GPU)
def test_lengths_that_broke_a_rule_are_reported_by_check(device):
    q, k, v = (CudaArray(make((12, 2, 16), device=device)) for _ in range(3))
    cu, bad = (CudaArray(torch.tensor(n, dtype=torch.int32, device=device)) for n in ([0, 5, 12], [0, 5, 99]))
    out = CudaArray(torch.zeros(12, 2, 16, device=device))
    lengths = {"max_seqlen_q": 7, "max_seqlen_k": 7}
    headrace.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=bad, out=out, **lengths)
    with pytest.raises(ValueError, match="cu_seqlens_k"):
        headrace.check("cuda:0")
    assert headrace.check("cuda:0") is None


# ---- softmax ----


@pytest.mark.parametrize("wrap", [DLPackArray, CudaArray])
@pytest.mark.parametrize("device", DEVICES)
def test_softmax_of_foreign_arrays(device, wrap):
    if device == "cpu" and wrap is CudaArray:
        pytest.skip("memory of a GPU")
    x, dy = make((3, 40, 5), device=device), make((3, 40, 5), device=device, seed=1)
    y, lse, dx = torch.empty_like(x), torch.empty(3, 5, device=device), torch.empty_like(x)
    headrace.softmax(wrap(x), 1, scale=0.5, out=wrap(y), lse=wrap(lse))
    headrace.softmax_backward(wrap(y), wrap(dy), 1, scale=0.5, out=wrap(dx))
    exact = x.double().requires_grad_()
    expected = torch.softmax(0.5 * exact, 1)
    expected.backward(dy.double())
    for got, want in ((y, expected), (lse, torch.logsumexp(0.5 * exact, 1)), (dx, exact.grad)):
        torch.testing.assert_close(got.double(), want.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", GPU)
def test_softmax_of_tensors_runs_on_pytorchs_stream(device):
    x = make((64, 1000), device=device)
    late, out = torch.zeros_like(x), torch.zeros_like(x)
    expected = torch.softmax(x, -1)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        headrace.softmax(late, out=out)
    stream.synchronize()
    torch.testing.assert_close(out, expected)
