"""Gradients: against finite differences in double, and against PyTorch's autograd; on CUDA against the CPU."""

import math

import pytest
from torch_data import DEVICES, DTYPES, make, qkv, same_bits, torch

import headrace.torch as ht

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")
F = torch.nn.functional
cuda_only = [device for device in DEVICES if device != "cpu"]


def formula(q, k, v, bias=None, mask=None, sinks=None, softcap=0.0, causal=False, scale=None):
    """[batch, seqlen, heads, dim] in plain PyTorch: (out, lse). Does not support rows without visible keys."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if causal:
        sq, sk = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(sq, sk).tril(sk - sq) == 0, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    columns = scores
    if sinks is not None:
        columns = torch.cat([scores, sinks.to(q.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    lse = columns.logsumexp(-1)
    return torch.einsum("bhij,bjhd->bihd", torch.exp(scores - lse[..., None]), v), lse


def gradients_of(function, tensors, weights):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    results = function(*leaves)
    sum((r * w).sum() for r, w in zip(results, weights, strict=True)).backward()
    return [t.grad for t in leaves]


def check_against_formula(tensors, ours, theirs, dtype, tolerance):
    """Ours in `dtype`; theirs in double from the same values."""
    shape, lse_shape = tensors[0].shape, (tensors[0].shape[0], tensors[0].shape[2], tensors[0].shape[1])
    dout, dlse = make((*shape[:-1], tensors[2].shape[-1]), dtype), make(lse_shape)
    got = gradients_of(ours, tensors, (dout, dlse))
    exact = gradients_of(theirs, [t.double() for t in tensors], (dout.double(), dlse.double()))
    for x, y, t in zip(got, exact, tensors, strict=True):
        assert x.shape == t.shape and x.dtype == t.dtype
        assert (x.double() - y).abs().max() <= tolerance * y.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_gradients_equal_autograd_of_the_formula(dtype, causal, kv_heads):
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    check_against_formula(
        qkv(dtype=dtype, kv_heads=kv_heads),
        lambda q, k, v: ht.attention(q, k, v, causal=causal, return_lse=True),
        lambda q, k, v: formula(q, k, v, causal=causal),
        dtype,
        tolerance,
    )


def test_gradients_of_bias_and_sinks_with_softcap_and_mask():
    mask = torch.ones(2, 1, 17, 29, dtype=torch.bool)
    mask[:, :, :, ::3] = False
    tensors = (*qkv(), make((1, 4, 1, 29)), make((4,)))
    check_against_formula(
        tensors,
        lambda q, k, v, b, s: ht.attention(q, k, v, bias=b, sinks=s, softcap=2.0, mask=mask, return_lse=True),
        lambda q, k, v, b, s: formula(q, k, v, bias=b, sinks=s, softcap=2.0, mask=mask),
        torch.float32,
        1e-5,
    )


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (2, 1)}, {"softcap": 1.5}, {"dropout_p": 0.3}])
def test_gradcheck(options):
    q, k, v = (x.double().requires_grad_() for x in qkv(batch=1, sq=3, sk=4, heads=2, kv_heads=1, dim=2, dim_v=3))
    bias = make((1, 2, 3, 4)).double().requires_grad_()

    def function(q, k, v, bias):
        torch.manual_seed(3)  # the same dropout every time
        return ht.attention(q, k, v, bias=bias, return_lse=True, **options)

    assert torch.autograd.gradcheck(function, (q, k, v, bias), eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention_equals_pytorchs(causal):
    q, k, v = (x.transpose(1, 2) for x in qkv(sk=17, kv_heads=4))
    weights = (make((2, 4, 17, 16)),)
    ours = gradients_of(lambda *x: (ht.scaled_dot_product_attention(*x, is_causal=causal),), (q, k, v), weights)
    theirs = gradients_of(lambda *x: (F.scaled_dot_product_attention(*x, is_causal=causal),), (q, k, v), weights)
    for x, y in zip(ours, theirs, strict=True):
        assert (x - y).abs().max() <= 1e-5 * y.abs().max()


def test_varlen_equals_each_sequence_alone():
    lengths_q, lengths_k = (5, 0, 12), (7, 3, 12)
    cu_q = torch.tensor([0, 5, 5, 17], dtype=torch.int32)
    cu_k = torch.tensor([0, 7, 10, 22], dtype=torch.int32)
    q, k, v = make((17, 4, 16), seed=1), make((22, 2, 16), seed=2), make((22, 2, 16), seed=3)
    dout = make((17, 4, 16), seed=4)
    got = gradients_of(
        lambda *x: (ht.flash_attn_varlen_func(*x, cu_q, cu_k, 12, 12, causal=True),), (q, k, v), (dout,)
    )
    for i, (n, m) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        rows, keys = slice(cu_q[i], cu_q[i] + n), slice(cu_k[i], cu_k[i] + m)
        alone = gradients_of(
            lambda *x: (ht.flash_attn_func(*x, causal=True),),
            (q[None, rows], k[None, keys], v[None, keys]),
            (dout[None, rows],),
        )
        for x, y, part in zip(got, alone, (rows, keys, keys), strict=True):
            assert same_bits(x[None, part], y)


def test_rows_that_see_no_key_give_zero():
    mask = torch.zeros(2, 1, 17, 29, dtype=torch.bool)
    for grad in gradients_of(lambda *x: (ht.attention(*x, mask=mask),), qkv(), (make((2, 17, 4, 16)),)):
        assert (grad == 0).all() and not torch.signbit(grad).any()


def test_layouts_of_inputs_and_of_dout():
    q, k, v = qkv(kv_heads=4)
    expanded = [x[:, :, :1].expand_as(x) for x in (k, v)]
    transposed = q.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)  # non-contiguous elements of a head
    plain = gradients_of(lambda *x: (ht.attention(*x),), (q, *[x.contiguous() for x in expanded]), (torch.ones(1),))
    leaves = [transposed.detach().requires_grad_(), *[x.detach().requires_grad_() for x in expanded]]
    ht.attention(*leaves).sum().backward()  # dout has zero strides
    for leaf, y in zip(leaves, plain, strict=True):
        assert same_bits(leaf.grad, y)


def test_compiled_equals_eager():
    torch._dynamo.reset()
    compiled = torch.compile(ht.attention, fullgraph=True, backend="aot_eager")
    weights = (make((2, 17, 4, 16)),)
    eager = gradients_of(lambda *x: (ht.attention(*x, causal=True),), qkv(), weights)
    for x, y in zip(gradients_of(lambda *x: (compiled(*x, causal=True),), qkv(), weights), eager, strict=True):
        assert same_bits(x, y)


def test_dropout_repeats_the_mask_of_the_forward():
    q, k, v = qkv(kv_heads=4)
    weights = (make((2, 17, 4, 16)),)

    def through_probs(q, k, v):
        torch.manual_seed(5)
        kept = ht.attention(q.detach(), k.detach(), v.detach(), dropout_p=0.4, return_probs=True)[1] > 0
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        keep = round(0.6 * 65536) / 65536
        return (torch.einsum("bhij,bjhd->bihd", scores.softmax(-1) * kept / keep, v),)

    def ours(q, k, v):
        torch.manual_seed(5)
        return (ht.attention(q, k, v, dropout_p=0.4),)

    for x, y in zip(
        gradients_of(ours, (q, k, v), weights), gradients_of(through_probs, (q, k, v), weights), strict=True
    ):
        assert (x - y).abs().max() <= 1e-5 * y.abs().max()


def gradients_on(device, tensors, **options):
    leaves = [t.detach().to(device).requires_grad_() for t in tensors]
    names = ("bias", "sinks")[: len(leaves) - 3]
    out = ht.attention(*leaves[:3], **dict(zip(names, leaves[3:], strict=True)), **options)
    (out * make(tuple(out.shape), out.dtype, device)).sum().backward()
    return [t.grad.cpu() for t in leaves]


@pytest.mark.parametrize("device", cuda_only)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 20.0}, {"window": (20, 3)}], ids=str)
def test_gradients_on_cuda_are_those_of_the_cpu(device, dtype, options):
    tensors = [*qkv(dtype=dtype, sq=150, sk=170, dim=40), make((1, 4, 1, 170), dtype), make((4,))]
    # Both round once, and on tensor cores P and dS as well.
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    theirs = gradients_on("cpu", tensors, **options)
    for x, y in zip(gradients_on(device, tensors, **options), theirs, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        assert (x.double() - y.double()).abs().max() <= tolerance * y.double().abs().max()


@pytest.mark.parametrize("device", cuda_only)
def test_deterministic_gradients_on_cuda_have_the_same_bits(device):
    torch.use_deterministic_algorithms(True)
    try:
        tensors = qkv(dtype=torch.float16, sq=700, sk=700, dim=64)
        first = gradients_on(device, tensors, causal=True)
        for _ in range(5):
            again = gradients_on(device, tensors, causal=True)
            assert all(same_bits(x, y) for x, y in zip(first, again, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("device", cuda_only)
def test_gradients_on_cuda_are_computed_on_the_current_stream(device):
    tensors = qkv(dtype=torch.float16, sq=100, sk=100, dim=64)
    expected = gradients_on(device, tensors)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        got = gradients_on(device, tensors)
    stream.synchronize()
    for x, y in zip(got, expected, strict=True):
        assert (x.double() - y.double()).abs().max() <= 1e-2 * y.double().abs().max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_a_packed_tensor_is_one_tensor(device, dtype):
    dim = 64  # supported by Hopper's backward in 16 bits
    packed = make((2, 19, 3, 4, dim), dtype, device)
    gaps = make((2, 19, 4, 4, dim), dtype, device)[:, :, 1:]  # a slice of a larger tensor
    q, kv = make((2, 19, 4, dim), dtype, device), make((2, 23, 2, 2, dim), dtype, device)
    dout = (make((2, 19, 4, dim), dtype, device, seed=5),)
    settings = {"causal": True, "deterministic": True}
    for function, tensors in (
        (ht.flash_attn_qkvpacked_func, (packed,)),
        (ht.flash_attn_qkvpacked_func, (gaps,)),
        (ht.flash_attn_kvpacked_func, (q, kv)),
    ):
        leaves = [t.detach().requires_grad_() for t in tensors]
        out = function(*leaves, **settings)
        parents = [parent for parent, _ in out.grad_fn.next_functions if parent is not None]
        assert [type(parent).__name__ for parent in parents] == ["AccumulateGrad"] * len(leaves)
        got = torch.autograd.grad(out, leaves, dout)

        def by_parts(*x):
            return (ht.flash_attn_func(*x[:-1], *x[-1].unbind(2), **settings),)

        for x, y in zip(got, gradients_of(by_parts, tensors, dout), strict=True):
            assert same_bits(x, y)
