"""Training beyond the gradients' values (those are in test_torch_backward.py): every function under
gradcheck, torch.compile, autocast and checkpointing; both ways to request determinism; PyTorch's own checks."""

import pytest
from test_torch_backward import gradients_of
from torch_data import DEVICES, make, qkv, same_bits, torch
from torch.utils.checkpoint import checkpoint

import headrace.torch as ht

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")

SMALL = {"batch": 1, "sq": 4, "sk": 4, "heads": 2, "kv_heads": 2, "dim": 3}

@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda":
        q = torch.ones((1, 1, 1, 8), device="cuda", requires_grad=True)
        try:
            ht.attention(q, q, q).sum().backward()
        except NotImplementedError:
            pytest.skip("this build has no backward on a GPU")
    return request.param


def first_two(results):
    return results[:2]  # without S_dmask, which is for debugging


def functions(device="cpu"):
    """name: (a function of differentiable tensors, the tensors)."""
    q, k, v = qkv(device, **SMALL)
    cu = torch.tensor([0, 1, 4], dtype=torch.int32, device=device)
    bias, mask = make((1, 2, 1, 4), device=device), make((4, 4), device=device)
    heads_first = tuple(x.transpose(1, 2) for x in (q, k, v))
    flat = tuple(x[0] for x in (q, k, v))
    return {
        "flash_attn_func": (
            lambda *x: first_two(ht.flash_attn_func(*x, causal=True, return_attn_probs=True)),
            (q, k, v),
        ),
        "flash_attn_func without lse": (lambda *x: (ht.flash_attn_func(*x, window_size=(1, 0)),), (q, k, v)),
        "kvpacked": (lambda q, kv: (ht.flash_attn_kvpacked_func(q, kv),), (q, torch.stack([k, v], 2))),
        "qkvpacked": (lambda qkv: (ht.flash_attn_qkvpacked_func(qkv, causal=True),), (torch.stack([q, k, v], 2),)),
        "varlen": (lambda *x: (ht.flash_attn_varlen_func(*x, cu, cu, 3, 3, causal=True),), flat),
        "sdpa": (lambda *x: (ht.scaled_dot_product_attention(*x, is_causal=True),), heads_first),
        "sdpa mask": (lambda q, k, v, m: (ht.scaled_dot_product_attention(q, k, v, m),), (*heads_first, mask)),
        "attention": (
            lambda q, k, v, b: ht.attention(q, k, v, bias=b, softcap=2.0, return_lse=True),
            (q, k, v, bias),
        ),
        "attention lse alone": (lambda *x: ht.attention(*x, return_lse=True)[1:], (q, k, v)),
    }


NAMES = list(functions())
HAVE_BIAS = ("sdpa mask", "attention")  # the last tensor; autocast does not cast a float32 bias


def weights_of(function, tensors):
    with torch.no_grad():
        return [make(tuple(r.shape), r.dtype, r.device, seed=9) for r in function(*tensors)]


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_of_every_function(device, name):
    function, tensors = functions(device)[name]
    tensors = [t.double().requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(function, tensors, eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_gradients_equal_eager_ones(device, name):
    function, tensors = functions(device)[name]
    weights = weights_of(function, tensors)
    eager = gradients_of(function, tensors, weights)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for x, y in zip(gradients_of(compiled, tensors, weights), eager, strict=True):
        assert same_bits(x, y)
    assert eager[0].any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_gradients_equal_kept_ones(device, name, use_reentrant):
    function, tensors = functions(device)[name]
    weights = weights_of(function, tensors)
    kept = gradients_of(function, tensors, weights)
    for _ in range(2):  # first and later calls take different paths
        again = gradients_of(lambda *x: checkpoint(function, *x, use_reentrant=use_reentrant), tensors, weights)
        for x, y in zip(again, kept, strict=True):
            assert same_bits(x, y)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_under_autocast_are_those_of_its_dtype(device, name):
    function, tensors = functions(device)[name]

    def cast(*x):
        with torch.autocast(device, dtype=torch.bfloat16):
            return function(*x)

    def by_hand(*x):
        num_cast = len(x) - (name in HAVE_BIAS)
        return function(*(t.bfloat16() for t in x[:num_cast]), *x[num_cast:])

    weights = weights_of(cast, tensors)
    for x, y, t in zip(*(gradients_of(f, tensors, weights) for f in (cast, by_hand)), tensors, strict=True):
        assert x.dtype == t.dtype and same_bits(x, y)


@pytest.fixture
def flags(monkeypatch):
    """`deterministic` of every planned backward."""
    from headrace import _plans

    seen, make_plan = [], _plans.make

    def watched(views, options, num_threads=0, gradients=None):
        plan = make_plan(views, options, num_threads, gradients)
        if gradients is not None:
            assert (", deterministic" in plan.text()) == options.deterministic
            seen.append(options.deterministic)
        return plan

    monkeypatch.setattr(_plans, "make", watched)
    _plans.cache_clear()
    return seen


@pytest.mark.parametrize("is_compiled", [False, True])
def test_determinism_reaches_the_plan(device, flags, is_compiled):
    q, k, v = (x.requires_grad_() for x in qkv(device, **SMALL))

    def backward(function, **options):
        torch._dynamo.reset()
        if is_compiled:
            function = torch.compile(function, fullgraph=True, backend="aot_eager")
        function(q, k, v, **options).square().sum().backward()

    for function in (ht.attention, ht.flash_attn_func):
        for deterministic in (False, True, False):
            backward(function, deterministic=deterministic)
    backward(ht.scaled_dot_product_attention)
    assert flags == [False, True, False]  # plans are cached
    out = ht.scaled_dot_product_attention(q, k, v)
    torch.use_deterministic_algorithms(True)
    try:
        out.sum().backward()  # the setting during the backward counts, as in PyTorch
        backward(ht.attention)
    finally:
        torch.use_deterministic_algorithms(False)
    assert flags == [False, True, False, True]


def test_the_backward_passes_pytorchs_own_checks(device):
    q, k, v = qkv(device)
    bias, sinks = make((1, 4, 1, 29), device=device), make((4,), device=device)
    options = (None, 0.0, 0.0, -1, -1, 0, 0, 1, 0, False, False, False, False, 0)
    for extras, with_dlse in (((None,) * 16, False), ((None, None, None, bias, None, None, sinks, *(None,) * 9), True)):
        out, lse, _ = torch.ops.headrace.attention(q, k, v, *extras, *options, False, True, False)
        dlse = make(tuple(lse.shape), device=device) if with_dlse else None
        arguments = (torch.ones_like(out), dlse, q, k, v, out, lse, *extras, *options, False)
        torch.library.opcheck(torch.ops.headrace.attention_backward.default, arguments)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(
        torch.ops.headrace.attention.default, (*leaves, *(None,) * 16, *options, False, True, False)
    )


def test_gradients_of_gradients_are_refused(device):
    q, k, v = (x.requires_grad_() for x in qkv(device, **SMALL))
    for with_autocast in (False, True):  # the direct path and the operator's
        with torch.autocast(device, enabled=with_autocast):
            out = ht.attention(q, k, v)
        (dq,) = torch.autograd.grad(out.float().square().sum(), q, create_graph=True)
        with pytest.raises(NotImplementedError, match="gradients of attention's gradients"):
            dq.sum().backward()


def test_tangents_are_refused(device):
    """PyTorch would silently ignore them and return zeros."""
    import torch.autograd.forward_ad as forward_ad

    q, k, v = qkv(device, **SMALL)
    ht.flash_attn_func(q, k, v), ht.flash_attn_func(q, k, v)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="tangent of forward-mode differentiation"):
            ht.flash_attn_func(dual, k, v)
        ht.flash_attn_func(q, k, v)
    with pytest.raises(NotImplementedError, match="tangent of forward-mode differentiation"):
        torch.func.jvp(lambda q: ht.flash_attn_func(q, k, v), (q,), (torch.ones_like(q),))
