"""Tensors whose values differ from their memory: each argument of each function refuses them or uses their values."""

import numpy as np
import pytest
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left
from torch_data import make, qkv, same_bits, torch

import headrace
import headrace.torch as ht

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")
F = torch.nn.functional


def arguments():
    """{function: {argument: tensor}} of every function and every tensor argument."""
    q, k, v = qkv()
    heads_first = {n: t.transpose(1, 2) for n, t in zip(("query", "key", "value"), (q, k, v), strict=True)}
    flat = {"q": make((34, 4, 16), seed=1), "k": make((34, 2, 16), seed=2), "v": make((34, 2, 16), seed=3)}
    lengths = torch.tensor([0, 10, 34], dtype=torch.int32)
    of_scores = {
        "alibi_slopes": make((4,)).abs(), "bias": make((2, 4, 17, 29)), "sinks": make((4,)),
        "mask": torch.rand((2, 4, 17, 29), generator=torch.Generator().manual_seed(1)) < 0.7,
        "tree_mask": torch.full((2, 17, 1), -1, dtype=torch.int32),
    }  # fmt: skip
    return {
        "flash_attn_func": {"q": q, "k": k, "v": v, "alibi_slopes": of_scores["alibi_slopes"]},
        "flash_attn_qkvpacked_func": {"qkv": make((2, 17, 3, 4, 16))},
        "flash_attn_kvpacked_func": {"q": q, "kv": torch.stack([k, v], 2)},
        "flash_attn_varlen_func": {**flat, "cu_seqlens_q": lengths, "cu_seqlens_k": lengths},
        "flash_attn_with_kvcache": {
            "q": q, "k_cache": make((9, 8, 2, 16), seed=2), "v_cache": make((9, 8, 2, 16), seed=3),
            "cache_seqlens": lengths[1:], "block_table": torch.tensor([[3, 1, -1, -1, -1], [0, 2, 8, 5, 4]]).int(),
            "alibi_slopes": of_scores["alibi_slopes"],
        },
        "scaled_dot_product_attention": {**heads_first, "attn_mask": of_scores["bias"]},
        "attention": {"q": q, "k": k, "v": v, **of_scores},
    }  # fmt: skip


OPTIONAL = ("alibi_slopes", "attn_mask", "bias", "mask", "sinks", "tree_mask")
NAMES = [(function, name) for function, tensors in arguments().items() for name in tensors]
every_argument = pytest.mark.parametrize(("function", "name"), NAMES, ids=["-".join(pair) for pair in NAMES])


def call(function, tensors):
    options = {"enable_gqa": True} if function == "scaled_dot_product_attention" else {}
    return getattr(ht, function)(**tensors, **options)


class Deferring(torch.Tensor):
    """Like CausalBias: passes unknown functions on to PyTorch."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Unwrapping(torch.Tensor):
    """Its values are stored elsewhere."""

    @staticmethod
    def __new__(cls, tensor):
        made = torch.Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype, strides=tensor.stride())
        made.inner = tensor
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = torch.utils._pytree.tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return function(*args, **kwargs)


class Plain(torch.Tensor):
    pass


def of_nothing(tensor, cls):
    """An instance of the class whose memory differs from its values."""
    other = torch.full_like(tensor, 1 if tensor.dtype in (torch.bool, torch.int32) else float("nan"))
    return other.as_subclass(cls)


@every_argument
@pytest.mark.parametrize("cls", [Deferring, CausalBias])
def test_a_class_with_hooks_that_did_not_unwrap_itself_is_refused(function, name, cls):
    tensors = arguments()[function]
    call(function, tensors)  # so that only the class differs from an earlier call
    if cls is CausalBias and name == "attn_mask":
        pytest.skip("the one place where it belongs")
    inner = {"kv": "packed|k", "qkv": "packed|q", "query": "q", "key": "k", "value": "v", "attn_mask": "bias"}
    inner.update(k_cache="k", v_cache="v", cache_seqlens="seqused_k")
    for needs_grad in (False, True):
        given = {n: t.requires_grad_(needs_grad and t.is_floating_point()) for n, t in arguments()[function].items()}
        given[name] = of_nothing(tensors[name], cls)
        refusal = rf"^({inner.get(name, name)}) is a .*\.{cls.__name__}, which overrides"
        its_own = "^CausalBias only supports"  # the message of an older PyTorch
        with pytest.raises((TypeError, NotImplementedError), match=f"{refusal}|{its_own}"):
            call(function, given)


@every_argument
def test_a_class_that_unwraps_itself_is_honoured(function, name):
    tensors = arguments()[function]
    wanted = call(function, tensors)
    assert same_bits(call(function, {**tensors, name: Unwrapping(tensors[name])}), wanted)


@every_argument
@pytest.mark.parametrize("kind", ["subclass", "parameter", "buffer"])
def test_a_class_without_hooks_is_a_tensor(function, name, kind):
    tensors = arguments()[function]
    wanted = call(function, tensors)
    tensor = tensors[name]
    if kind == "parameter":
        tensor = torch.nn.Parameter(tensor, requires_grad=False)
    elif kind == "buffer":
        if not hasattr(torch.nn, "Buffer"):
            pytest.skip("this PyTorch has no Buffer")
        tensor = torch.nn.Buffer(tensor)
    else:
        tensor = tensor.as_subclass(Plain)
    for _ in range(2):
        assert same_bits(call(function, {**tensors, name: tensor}).as_subclass(torch.Tensor), wanted)


@every_argument
@pytest.mark.parametrize("convert", [lambda t: t.numpy(), lambda t: t.tolist()], ids=["array", "list"])
def test_what_is_no_tensor_is_named(function, name, convert):
    tensors = arguments()[function]
    call(function, tensors)
    with pytest.raises(TypeError, match=rf"^{name} is a .*: must be a torch.Tensor; pass torch.as_tensor\({name}\)"):
        call(function, {**tensors, name: convert(tensors[name])})


@every_argument
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
def test_nested_tensors_are_for_scaled_dot_product_attention(function, name, layout):
    """Also if calls with tensors alone, whose settings the package remembers, came before."""
    tensors = arguments()[function]
    required = {n: t for n, t in tensors.items() if n not in OPTIONAL}
    nested = torch.nested.nested_tensor([torch.ones(3, 2, 8), torch.ones(5, 2, 8)], layout=layout)
    for others in (tensors, required):
        for _ in range(3):
            call(function, others)
        with pytest.raises((ValueError, NotImplementedError), match=r"nested tensor"):
            call(function, {**others, name: nested})


# ---- causal biases of PyTorch ----


@pytest.mark.parametrize("make_bias", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize(("sq", "sk"), [(17, 17), (17, 29), (29, 17), (1, 9)])
@pytest.mark.parametrize("axes", [2, 3, 4])
@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_a_causal_bias_is_applied_whatever_its_memory_holds(make_bias, sq, sk, axes):
    shapes = [(2, 4, n, 16)[4 - axes :] for n in (sq, sk, sk)]
    leaves = [make(shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    bias = make_bias(sq, sk)
    with torch._C.DisableTorchFunctionSubclass():
        bias.as_subclass(torch.Tensor).fill_(float("nan"))
    got = ht.scaled_dot_product_attention(*leaves, bias)
    seen = bias._materialize()
    rows = seen.any(-1, keepdim=True)
    wanted = F.scaled_dot_product_attention(*leaves, seen | ~rows) * rows
    assert (got - wanted).abs().max() < 1e-5
    weights = make(got.shape, seed=5)
    for a, b in zip(*(torch.autograd.grad(out, leaves, weights) for out in (got, wanted)), strict=True):
        assert (a - b).abs().max() < 1e-5


def test_a_causal_bias_of_other_lengths_is_refused():
    q, k, v = (make((1, 2, n, 8)) for n in (4, 6, 6))
    for sizes in ((4, 5), (5, 6), (6, 4)):
        with pytest.raises(ValueError, match="attn_mask is a CausalBias of .* keys: must be of 4 and 6"):
            ht.scaled_dot_product_attention(q, k, v, causal_upper_left(*sizes))


def test_the_flash_operator_of_cuda_is_causal_bottom_right():
    """PyTorch calls it with non-square scores only for causal_lower_right."""
    from headrace.torch import _sdpa

    q, k, v = (make((1, 2, n, 8), torch.float16) for n in (4, 6, 6))
    try:
        out = _sdpa._flash_cuda(q, k, v, 0.0, True)[0]
    except NotImplementedError:
        pytest.skip("this PyTorch describes the operator's results on a GPU alone")
    assert same_bits(out, ht.scaled_dot_product_attention(q, k, v, causal_lower_right(4, 6)))


# ---- negated views ----


def negated(tensor):
    """The same values as a negated view of negated memory."""
    view = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert view.is_neg() and torch.equal(view, tensor)
    return view


FLOATS = [(f, n) for f, n in NAMES if arguments()[f][n].is_floating_point()]


@pytest.mark.parametrize(("function", "name"), FLOATS, ids=["-".join(pair) for pair in FLOATS])
@pytest.mark.parametrize("columns", [1, 16])
def test_negated_views_are_read_as_they_are(function, name, columns):
    tensors = {n: t[..., :columns] if t.shape[-1] == 16 else t for n, t in arguments()[function].items()}
    wanted = call(function, tensors)
    for _ in range(3):
        assert same_bits(call(function, {**tensors, name: negated(tensors[name])}), wanted)
        assert same_bits(call(function, tensors), wanted)


@pytest.mark.parametrize("function", ["attention", "flash_attn_qkvpacked_func"])
@pytest.mark.parametrize("columns", [1, 16])
def test_gradients_that_arrive_negated_are_read_as_they_are(function, columns):
    """Like the gradient of the imaginary part of a conjugated tensor."""
    tensors = {n: t[..., :columns] if t.shape[-1] == 16 else t for n, t in arguments()[function].items()}
    leaves = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in tensors.items()}
    results = getattr(ht, function)(
        **leaves, **({"return_lse": True} if function == "attention" else {"return_attn_probs": True})
    )[:2]
    weights = [make(tuple(t.shape), seed=i) for i, t in enumerate(results)]
    differentiable = [t for n, t in leaves.items() if t.requires_grad and n != "alibi_slopes"]
    wanted = torch.autograd.grad(results, differentiable, weights, retain_graph=True)
    for changed in ((negated(weights[0]), weights[1]), (weights[0], negated(weights[1]))):
        got = torch.autograd.grad(results, differentiable, changed, retain_graph=True)
        assert all(same_bits(a, b) for a, b in zip(got, wanted, strict=True))


# ---- arrays ----


def array_calls():
    """{function: (call, arrays by name)} of the functions that accept PyTorch tensors through DLPack."""
    q, k, v = (t.numpy() for t in qkv())
    bias, out, lse = make((2, 4, 17, 29)).numpy(), np.empty_like(q), np.empty((2, 4, 17), np.float32)
    headrace.attention(q, k, v, bias=bias, out=out, lse=lse)
    of_scores = {"bias": bias, "alibi_slopes": np.ones(4, np.float32), "sinks": np.ones(4, np.float32)}
    x = np.ones((3, 4), np.float32)
    return {
        "attention": (headrace.attention, {"q": q, "k": k, "v": v, **of_scores, "out": out, "lse": lse}),
        "attention_backward": (
            headrace.attention_backward,
            {
                "q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": np.ones_like(out), "dlse": np.ones_like(lse),
                "bias": bias, "dq": np.empty_like(q), "dk": np.empty_like(k), "dbias": np.empty_like(bias),
            },
        ),
        "softmax": (headrace.softmax, {"x": x, "out": x.copy(), "lse": x[:, 0].copy()}),
        "softmax_backward": (headrace.softmax_backward, {"y": x, "dy": x, "out": x.copy()}),
    }  # fmt: skip


ARRAYS = [(f, n) for f, (_, arrays) in array_calls().items() for n in arrays]


@pytest.mark.parametrize(("function", "name"), ARRAYS, ids=["-".join(pair) for pair in ARRAYS])
@pytest.mark.parametrize("kind", ["opaque", "negated", "masked"])
def test_arrays_that_are_not_their_memory_are_refused(function, name, kind):
    run, arrays = array_calls()[function]
    run(**arrays)
    if name == "q" and kind != "masked":
        pytest.skip("a tensor as q goes to headrace.torch")
    tensor = torch.from_numpy(arrays[name])
    wrong, error, text = {
        "opaque": (of_nothing(tensor, Deferring), TypeError, "which overrides"),
        "negated": (negated(tensor), ValueError, "is a negated view: .*resolve_neg"),
        "masked": (np.ma.masked_array(arrays[name], arrays[name] > 0), TypeError, "is a masked array: .*filled"),
    }[kind]
    with pytest.raises(error, match=rf"^{name} .*{text}"):
        run(**{**arrays, name: wrong})
