"""Attention under torch.func's transforms and autograd's batched gradients, compared with plain operations."""

import pytest
from test_torch_backward import formula
from torch_data import make, qkv, torch

import headrace.torch as ht

pytestmark = [
    pytest.mark.filterwarnings("ignore::headrace.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]
func = torch.func


def plain(q, k, v, **options):
    return formula(q, k, v, **options)[0]


def plain_packed(qkv):
    return plain(*qkv.unbind(2))


def plain_heads_first(q, k, v):
    return plain(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


def plain_varlen(q, k, v):
    parts = [plain(*(t[None, rows] for t in (q, k, v)))[0] for rows in (slice(0, 5), slice(5, 12))]
    return torch.cat(parts)


def cases():
    """{name: (ours, the same in plain operations, tensors that are differentiated)}"""
    q, k, v = qkv(sq=7, sk=9)
    cu = torch.tensor([0, 5, 12], dtype=torch.int32)
    flat = tuple(make((12, 2, 8), seed=i) for i in range(3))
    mask = torch.ones(2, 1, 7, 9, dtype=torch.bool)
    mask[..., ::3] = False
    heads_first = tuple(t.transpose(1, 2) for t in (q, k, v))
    return {
        "flash_attn": (ht.flash_attn_func, plain, (q, k, v)),
        "packed": (ht.flash_attn_qkvpacked_func, plain_packed, (make((2, 7, 3, 2, 8)),)),
        "kvpacked": (
            lambda q, kv: ht.flash_attn_kvpacked_func(q, kv), lambda q, kv: plain(q, *kv.unbind(2)),
            (q, torch.stack([k, v], 2)),
        ),
        "varlen": (lambda q, k, v: ht.flash_attn_varlen_func(q, k, v, cu, cu, 7, 7), plain_varlen, flat),
        "sdpa": (
            lambda q, k, v: ht.scaled_dot_product_attention(q, k, v, enable_gqa=True), plain_heads_first, heads_first,
        ),
        "causal": (lambda *x: ht.attention(*x, causal=True), lambda *x: plain(*x, causal=True), (q, k, v)),
        "extras": (
            lambda q, k, v, b, s: ht.attention(q, k, v, bias=b, sinks=s, softcap=2.0, mask=mask),
            lambda q, k, v, b, s: plain(q, k, v, bias=b, sinks=s, softcap=2.0, mask=mask),
            (q, k, v, make((1, 4, 1, 9)), make((4,))),
        ),
        "lse": (lambda q, k: ht.attention(q, k, v, return_lse=True)[1], lambda q, k: formula(q, k, v)[1], (q, k)),
    }  # fmt: skip


every_case = pytest.mark.parametrize("name", cases())


def check(got, wanted):
    got, wanted = (torch.utils._pytree.tree_leaves(x) for x in (got, wanted))
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted, strict=True):
        assert x.shape == y.shape
        assert (x - y).abs().max() <= 2e-5 * y.abs().max()


def all_of(tensors):
    return tuple(range(len(tensors)))


def samples(tensor, dim):
    return torch.stack([tensor, 0.5 * tensor, tensor + 0.25], dim)


@every_case
def test_grad_and_vjp(name):
    ours, theirs, tensors = cases()[name]
    weights = make(tuple(theirs(*tensors).shape), seed=9)

    def gradients(function):
        of_sum = func.grad(lambda *x: (function(*x) * weights).sum(), all_of(tensors))(*tensors)
        return of_sum, func.vjp(function, *tensors)[1](weights)

    check(gradients(ours), gradients(theirs))


@every_case
def test_jacrev(name):
    ours, theirs, tensors = cases()[name]

    def jacobian(function):
        return func.jacrev(lambda *x: function(*x).flatten(1).sum(1), all_of(tensors))(*tensors)

    check(jacobian(ours), jacobian(theirs))


@every_case
@pytest.mark.parametrize("dim", [0, 1])
def test_vmap_of_calls_and_of_gradients(name, dim):
    ours, theirs, tensors = cases()[name]
    many = [samples(t, dim) for t in tensors]

    def of(function):
        gradient = func.grad(lambda *x: function(*x).square().sum(), all_of(tensors))
        return func.vmap(function, dim)(*many), func.vmap(gradient, dim)(*many)

    check(of(ours), of(theirs))


@every_case
def test_vmap_over_any_one_argument(name):
    ours, theirs, tensors = cases()[name]
    for i in range(len(tensors)):
        given = [samples(t, 0) if i == j else t for j, t in enumerate(tensors)]
        in_dims = tuple(0 if i == j else None for j in range(len(tensors)))

        def of(function, given=given, in_dims=in_dims):
            gradient = func.grad(lambda *x: function(*x).square().sum(), all_of(tensors))
            return func.vmap(function, in_dims)(*given), func.vmap(gradient, in_dims)(*given)

        check(of(ours), of(theirs))


@every_case
def test_gradients_of_vmap_and_vmap_of_vmap(name):
    ours, theirs, tensors = cases()[name]
    many = [samples(t, 0) for t in tensors]

    def of(function):
        gradient = func.grad(lambda *x: func.vmap(function)(*x).square().sum(), all_of(tensors))
        twice = func.vmap(func.vmap(function))(*(t[None] for t in many))
        leaves = [t.clone().requires_grad_() for t in many]
        outside = torch.autograd.grad(func.vmap(function)(*leaves).square().sum(), leaves)
        return gradient(*many), twice, outside

    check(of(ours), of(theirs))


@every_case
def test_batched_gradients_of_autograd(name):
    ours, theirs, tensors = cases()[name]
    weights = make((3, *theirs(*tensors).shape), seed=9)

    def of(function):
        leaves = [t.clone().requires_grad_() for t in tensors]
        return torch.autograd.grad(function(*leaves), leaves, weights, is_grads_batched=True)

    check(of(ours), of(theirs))


def test_batched_gradcheck():
    q, k, v = (x.double().requires_grad_() for x in qkv(batch=1, sq=3, sk=4, heads=2, kv_heads=1, dim=2))
    bias = make((1, 2, 3, 4)).double().requires_grad_()
    arguments = {"eps": 1e-6, "atol": 1e-7, "rtol": 1e-5, "check_batched_grad": True}
    assert torch.autograd.gradcheck(lambda *x: ht.flash_attn_func(*x), (q, k, v), **arguments)
    both = lambda q, k, v, bias: ht.attention(q, k, v, bias=bias, return_lse=True)  # noqa: E731
    assert torch.autograd.gradcheck(both, (q, k, v, bias), **arguments)


@every_case
def test_what_there_is_no_derivative_of_is_refused(name):
    ours, _, tensors = cases()[name]

    def loss(*x):
        return ours(*x).square().sum()

    for transform in (func.hessian, func.jacfwd, lambda f: func.jacrev(func.jacrev(f)), lambda f: func.grad(
        lambda *x: func.grad(f)(*x).sum()
    )):  # fmt: skip
        with pytest.raises(NotImplementedError):
            transform(loss)(*tensors)


def test_dropout_under_vmap_follows_its_randomness():
    q, k, v = qkv(sk=17, kv_heads=4)
    many = torch.stack([q, q])

    def call(x):
        return ht.flash_attn_func(x, k, v, 0.5)

    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(call)(many)
    first, second = func.vmap(call, randomness="same")(many)
    assert torch.equal(first, second)
    first, second = func.vmap(call, randomness="different")(many)
    assert not torch.equal(first, second)
