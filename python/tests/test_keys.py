"""The keys of cached plans: two calls that differ in any one thing both give the same results as on their own.

Each call is made in an empty cache for what is right, then both in one cache, in either order and twice.
"""

import itertools

import numpy as np
import pytest
from call_orders import are_same, check_both_orders, result_of
from torch_data import make, qkv, torch

import headrace
import headrace.torch as ht
from headrace import _plans
from headrace.torch import _eager

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")


# ---- options ----

# A different value for every field of Options, with the arguments that make it matter.
OPTIONS = {
    "softmax_scale": ({"softmax_scale": 0.9}, {}),
    "softcap": ({"softcap": 1.5}, {}),
    "dropout_p": ({"dropout_p": 0.5}, {"dropout_p": 0.25}),
    "window_left": ({"window": (3, -1)}, {}),
    "window_right": ({"window": (-1, 2)}, {}),
    "max_seqlen_q": ({"max_seqlen_q": 4}, {"is_ragged": True}),
    "max_seqlen_k": ({"max_seqlen_k": 4}, {"is_ragged": True}),
    "causal": ({"causal": True}, {"causal": "top-left"}),
    "num_splits": ({"num_splits": 4}, {}),
    "strict_fallback": ({"strict_fallback": True}, {"dtype": "float64"}),
    "strict_rows": ({"strict_rows": True}, {}),
    "checked": ({"checked": True}, {}),
    "deterministic": ({"deterministic": True}, {}),
    "max_shared_prefix": ({"max_shared_prefix": 512}, {}),  # an error without pages
}
# Fields that change no bits on a CPU: only the number of plans shows that they are distinguished.
SILENT = {"num_splits", "strict_rows", "checked", "deterministic", "max_shared_prefix"}
NOT_OF_GRADIENTS = ("num_splits", "strict_rows", "max_shared_prefix")  # of arrays
KINDS = ("arrays", "arrays backward", "tensors", "tensors backward")


def attention_call(kind, options, is_ragged=False, dtype="float32"):
    lengths = np.array([0, 10, 17], np.int32)
    shapes = [(17, 4, 16), (17, 2, 16), (17, 2, 16)] if is_ragged else [(2, 17, 4, 16), (2, 29, 2, 16), (2, 29, 2, 16)]
    q, k, v = (make(shape, seed=i).numpy().astype(dtype) for i, shape in enumerate(shapes))
    options = {"dropout_seed": 3, **options}
    if is_ragged:
        options = {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths, "max_seqlen_q": 10, "max_seqlen_k": 10, **options}
    if kind == "arrays":
        options.pop("deterministic", None)
        return lambda: headrace.attention(q, k, v, **options, return_lse=True)
    if kind == "arrays backward":
        options = {n: x for n, x in options.items() if n not in NOT_OF_GRADIENTS}
        forward = {n: x for n, x in options.items() if n not in ("deterministic", "strict_fallback")}

        def differentiate():
            out, lse = headrace.attention(q, k, v, **forward, return_lse=True)
            return headrace.attention_backward(q, k, v, out, lse, np.ones_like(out), **options)

        return differentiate
    options = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    tensors = [torch.from_numpy(x).requires_grad_("backward" in kind) for x in (q, k, v)]
    if kind == "tensors":
        return lambda: ht.attention(*tensors, **options, return_lse=True)
    return lambda: torch.autograd.grad(ht.attention(*tensors, **options).sum(), tensors)


def test_every_option_has_its_case():
    assert OPTIONS.keys() == set(_plans.Options._fields)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIONS)
def test_calls_that_differ_in_an_option(kind, name):
    changed, base = OPTIONS[name]
    if name == "dropout_p" and kind == "tensors backward":
        base = {**base, "dropout_seed": 3}
    base = dict(base)
    settings = {n: base.pop(n) for n in ("is_ragged", "dtype") if n in base}
    first, second = attention_call(kind, base, **settings), attention_call(kind, {**base, **changed}, **settings)
    a, b = check_both_orders(first, second)
    is_absent = (kind == "arrays" and name == "deterministic") or (
        kind == "arrays backward" and name in NOT_OF_GRADIENTS
    )
    if name not in SILENT:
        assert not are_same(a, b), "the case says nothing"
    if not is_absent:
        headrace.cache_clear()
        result_of(first)
        alone_count = len(_plans._kept)
        result_of(second)
        assert isinstance(b, str) or len(_plans._kept) > alone_count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["dropout_seed", "dropout_offset"])
@pytest.mark.parametrize("bit", [0, 1, 31, 32, 63])
def test_calls_that_differ_in_a_bit_of_the_dropout_words(kind, name, bit):
    words = (5, 5 ^ 1 << bit)
    a, b = check_both_orders(
        *(attention_call(kind, {"dropout_p": 0.4, "dropout_seed": 3, name: word}) for word in words)
    )
    assert not are_same(a, b)


# ---- tensors ----


def gap(x):
    wide = np.full((*x.shape[:-2], x.shape[-2] + 1, x.shape[-1]), np.nan, x.dtype)
    wide[..., : x.shape[-2], :] = x
    return wide[..., : x.shape[-2], :]


def shifted(x):
    room = np.zeros(x.size + 1, x.dtype)
    room[1:] = x.ravel()
    return room[1:].reshape(x.shape)


def backwards(x):
    return np.ascontiguousarray(x[:, ::-1])[:, ::-1]


def base_arrays():
    q, k, v = (t.numpy() for t in qkv())
    return {
        "q": q, "k": k, "v": v, "alibi_slopes": np.linspace(0.1, 1, 4, dtype=np.float32),
        "bias": make((2, 4, 17, 29), seed=7).numpy(), "mask": np.tri(17, 29, 12, bool)[None, None].repeat(2, 0),
        "tree_mask": np.random.default_rng(1).integers(0, 2**32, (2, 17, 1), dtype=np.uint32),
        "sinks": make((4,), seed=8).numpy(),
    }  # fmt: skip


def half_of(axis):
    return lambda x: x[(slice(None),) * axis + (slice(0, max(x.shape[axis] // 2, 1)),)]


EXTRAS = ("alibi_slopes", "bias", "mask", "tree_mask", "sinks")
RANKS = {"q": 4, "k": 4, "v": 4, "alibi_slopes": 1, "bias": 4, "mask": 4, "tree_mask": 3, "sinks": 1}
# {name: change of a tensor}. A change may be invalid, which must then be an error after any other call.
CHANGES = {
    **{f"axis {i} of {n}": {n: half_of(i)} for n in "qkv" for i in range(4)},
    **{f"dtype of {n}": {n: lambda x: x.astype(np.float16)} for n in "qkv"},
    "head_dim": {n: lambda x: x[..., :8] for n in "qk"},
    "head_dim_v": {"v": lambda x: x[..., :8]},
    "seqlen_q": {n: (lambda x: x[:, :9]) for n in ("q", "tree_mask")},
    "seqlen_k": {n: (lambda x: x[:, :20]) for n in "kv"},
    "batch": {n: (lambda x: x[:1]) for n in ("q", "k", "v", "tree_mask")},
    "num_heads": {"q": lambda x: x[:, :, :2]},
    "num_kv_heads": {n: (lambda x: x[:, :, :1]) for n in "kv"},
    "dtype": {n: (lambda x: x.astype(np.float16)) for n in "qkv"},
    **{f"strides of {n}": {n: gap} for n in "qkv"},
    **{f"address of {n}": {n: shifted} for n in "qkv"},
    **{f"direction of {n}": {n: backwards} for n in "qkv"},
    **{f"order of {n}": {n: lambda x: np.asfortranarray(x.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)} for n in "qkv"},
}
OF_EXTRAS = {
    **{f"axis {i} of {n}": {n: half_of(i)} for n in EXTRAS for i in range(RANKS[n])},
    **{f"dtype of {n}": {n: lambda x: x.astype(np.float64)} for n in EXTRAS},
    "bias batch": {"bias": lambda x: x[:1]},
    "bias heads": {"bias": lambda x: x[:, :1]},
    "bias rows": {"bias": lambda x: x[:, :, :1]},
    "bias keys": {"bias": lambda x: x[..., :1]},
    "bias strides": {"bias": lambda x: np.asfortranarray(x)},
    "mask batch": {"mask": lambda x: x[:1]},
    "mask rows": {"mask": lambda x: x[:, :, 3:4]},
    "mask keys": {"mask": lambda x: x[..., :1]},
    "mask strides": {"mask": lambda x: np.asfortranarray(x)},
    "alibi per batch": {"alibi_slopes": lambda x: np.stack([x, 2 * x])},
    "alibi strides": {"alibi_slopes": lambda x: np.stack([x, 5 * x], 1)[:, 0]},
    "sinks strides": {"sinks": lambda x: np.stack([x, x + 3], 1)[:, 0]},
    "tree strides": {"tree_mask": lambda x: np.asfortranarray(np.concatenate([x, 0 * x, ~x], 2))[..., :1]},
    **{f"no {n}": {n: lambda x: None} for n in EXTRAS},
}


def tensors_call(kind, arrays):
    arrays = {n: x for n, x in arrays.items() if x is not None}
    if kind == "arrays":
        return lambda: headrace.attention(**arrays, return_lse=True)
    if kind == "arrays backward":

        def differentiate():
            out, lse = headrace.attention(**arrays, return_lse=True)
            return headrace.attention_backward(**arrays, out=out, lse=lse, dout=np.ones_like(out))

        return differentiate
    tensors = {n: as_tensor(x) for n, x in arrays.items()}
    if kind == "tensors":
        return lambda: ht.attention(**tensors, return_lse=True)
    if kind == "flash":
        return lambda: ht.flash_attn_func(**tensors)
    leaves = [tensors[n].detach().requires_grad_() for n in ("q", "k", "v", "bias", "sinks") if n in tensors]
    tensors |= dict(zip((n for n in ("q", "k", "v", "bias", "sinks") if n in tensors), leaves, strict=True))
    function = ht.flash_attn_func if kind == "flash backward" else ht.attention
    return lambda: torch.autograd.grad(function(**tensors).sum(), leaves)


def as_tensor(x):
    x = x.view(np.int32) if x.dtype == np.uint32 else x
    return torch.from_numpy(x if min(x.strides) >= 0 else x.copy())


@pytest.mark.parametrize("kind", [*KINDS, "flash", "flash backward"])
@pytest.mark.parametrize("change", [*CHANGES, *OF_EXTRAS])
def test_calls_that_differ_in_a_tensor(kind, change):
    if change in OF_EXTRAS and kind.startswith("flash"):
        pytest.skip("no arguments of flash_attn_func")
    names = ("q", "k", "v", *(EXTRAS if change in OF_EXTRAS else ()))
    base = {n: x for n, x in base_arrays().items() if n in names}
    changed = {n: {**CHANGES, **OF_EXTRAS}[change].get(n, lambda x: x)(x) for n, x in base.items()}
    check_both_orders(tensors_call(kind, base), tensors_call(kind, changed))


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_differ_in_the_layout(kind):
    """The same memory with its second and third axes swapped."""
    q, k, v = (make((2, 4, 4, 16), seed=i) for i in range(3))

    def call(layout):
        def run():
            if kind == "arrays":
                return headrace.attention(q.numpy(), k.numpy(), v.numpy(), causal=True, layout=layout)
            if kind == "arrays backward":
                arrays, options = [x.numpy() for x in (q, k, v)], {"causal": True, "layout": layout}
                out, lse = headrace.attention(*arrays, **options, return_lse=True)
                return headrace.attention_backward(*arrays, out, lse, out, **options)
            leaves = [x.clone().requires_grad_("backward" in kind) for x in (q, k, v)]
            out = ht.attention(*leaves, causal=True, layout=layout)
            return torch.autograd.grad(out.square().sum(), leaves) if "backward" in kind else out

        return run

    a, b = check_both_orders(call("bshd"), call("bhsd"))
    assert not are_same(a, b)


WANTED = [{}, {"return_lse": True}, {"return_probs": True}, {"return_lse": True, "return_probs": True}]


@pytest.mark.parametrize("pair", list(itertools.combinations(range(4), 2)), ids=str)
@pytest.mark.parametrize("needs_grad", [None, False, True])
def test_calls_that_differ_in_what_they_return(pair, needs_grad):
    q, k, v = qkv(sk=17)

    def call(wanted):
        if needs_grad is None:
            return lambda: headrace.attention(q.numpy(), k.numpy(), v.numpy(), **wanted)
        leaves = [x.clone().requires_grad_(needs_grad) for x in (q, k, v)]
        return lambda: ht.attention(*leaves, **wanted)

    check_both_orders(*(call(WANTED[i]) for i in pair))


@pytest.mark.parametrize("function", ["flash_attn_func", "scaled_dot_product_attention", "attention"])
def test_calls_that_differ_in_what_needs_a_gradient(function):
    tensors = qkv(sk=17, kv_heads=4)
    subsets = [(), *((i,) for i in range(3)), (0, 1, 2)]
    calls = [[t.clone().requires_grad_(i in subset) for i, t in enumerate(tensors)] for subset in subsets]
    for first, second in itertools.permutations(range(len(calls)), 2):
        headrace.cache_clear()
        for i in (first, second, first, second):
            out = getattr(ht, function)(*calls[i])
            with torch.no_grad():
                assert not getattr(ht, function)(*calls[i]).requires_grad
            assert out.requires_grad == bool(subsets[i])
            if subsets[i]:
                wanted = [calls[i][n] for n in subsets[i]]
                assert all(x.any() for x in torch.autograd.grad(out.square().sum(), wanted))


def gradients_that_arrive():
    """{name: dout and dlse}, the same shapes."""
    dout, dlse = make((2, 17, 4, 16), seed=5), make((2, 4, 17), seed=6)
    room = torch.zeros(dout.numel() + 1)
    room[1:] = dout.flatten()
    return {
        "both": (dout, dlse),
        "of out": (dout, None),
        "of lse": (None, dlse),
        "shifted": (room[1:].view_as(dout), dlse),
        "expanded": (dout[:, :, :1].expand_as(dout), dlse),
        "transposed": (dout.transpose(1, 2).contiguous().transpose(1, 2), dlse),
        "with gaps": (torch.stack([dout, dout], -1)[..., 0], dlse),
        "lse transposed": (dout, dlse.transpose(1, 2).contiguous().transpose(1, 2)),
        "lse expanded": (dout, dlse[..., :1].expand_as(dlse)),
    }


@pytest.mark.parametrize("pair", list(itertools.combinations(gradients_that_arrive(), 2)), ids="-".join)
def test_backwards_that_differ_in_how_gradients_arrive(pair):
    leaves = [x.requires_grad_() for x in qkv(sk=17)]
    given = gradients_that_arrive()

    def call(name):
        def run():
            results = ht.attention(*leaves, return_lse=True)
            reached = [i for i, gradient in enumerate(given[name]) if gradient is not None]
            gradients = [given[name][i] for i in reached]
            return torch.autograd.grad([results[i] for i in reached], leaves, gradients, allow_unused=True)

        return run

    check_both_orders(*map(call, pair))


def test_calls_that_differ_in_how_the_result_lies():
    """The result layout differs: our replacement uses the layout of PyTorch's own kernel."""
    q, k, v = (make((17, 2, 4, 16), seed=i).permute(1, 2, 0, 3) for i in range(3))
    plain = torch.nn.functional.scaled_dot_product_attention

    def replaced():
        with ht.replace_sdpa(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return plain(q, k, v)

    calls = {replaced: None, lambda: ht.attention(q, k, v, layout="bhsd", return_lse=True)[0]: None}
    for call in calls:
        headrace.cache_clear()
        calls[call] = call().stride()
    if len(set(calls.values())) == 1:
        pytest.skip("this PyTorch lays its results out as we do")
    for order in itertools.permutations(calls):
        headrace.cache_clear()
        assert [call().stride() for call in order] == [calls[call] for call in order]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_differ_in_what_a_tensor_is(kind):
    """alibi_slopes and sinks have the same shape and dtype."""
    arrays = base_arrays()
    operands, like = {n: arrays[n] for n in "qkv"}, arrays["alibi_slopes"]
    first, second = (tensors_call(kind, {**operands, name: like}) for name in ("alibi_slopes", "sinks"))
    a, b = check_both_orders(first, second)
    assert not are_same(a, b)


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse", "dout", "dlse", "dq", "dk", "dv", "dbias", "dsinks"])
@pytest.mark.parametrize("change", [shifted, np.asfortranarray, gap], ids=lambda f: f.__name__)
def test_backwards_that_differ_in_how_one_array_lies(name, change):
    arrays = {n: x for n, x in base_arrays().items() if n in ("q", "k", "v", "bias", "sinks")}
    out, lse = headrace.attention(**arrays, return_lse=True)
    given = {**arrays, "out": out, "lse": lse, "dout": make(out.shape, seed=9).numpy(), "dlse": lse.copy()}
    outputs = {f"d{n}": np.zeros_like(x) for n, x in arrays.items()}
    if name == "dsinks" and change is gap:
        pytest.skip("one axis")

    def call(changed):
        tensors = {n: change(x) if n == name and changed else x for n, x in {**given, **outputs}.items()}

        def run():
            for n in outputs:
                tensors[n][...] = 0
            return tuple(headrace.attention_backward(**tensors))

        return run

    if name in ("q", "k", "v", "out", "dout", "dq", "dk", "dv") and change is np.asfortranarray:
        with pytest.raises(ValueError, match=rf"{name}.strides\[3\]=\d+: must be 1"):
            call(True)()
        return
    a, b = check_both_orders(call(False), call(True))
    assert are_same(a, b), "the values are the same"


# ---- plain calls, which are looked up by settings ----

FLASH = {
    "softmax_scale": 0.7, "causal": True, "window_size": (3, 1), "softcap": 2.0, "num_splits": 3, "deterministic": True,
}  # fmt: skip
SDPA = {"is_causal": True, "scale": 0.7, "enable_gqa": True}


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("function", ["flash_attn_func", "scaled_dot_product_attention"])
@pytest.mark.parametrize("setting", [*FLASH, *SDPA])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_plain_calls_that_differ_in_a_setting(function, setting, needs_grad, kv_heads):
    values = FLASH if function == "flash_attn_func" else SDPA
    if setting not in values:
        pytest.skip("an argument of the other function")
    tensors = [t.requires_grad_(needs_grad) for t in qkv(sk=17, kv_heads=kv_heads)]
    if function != "flash_attn_func":
        tensors = [t.transpose(1, 2) for t in tensors]

    def call(settings):
        def run():
            out = getattr(ht, function)(*tensors, **settings)
            return (out, *torch.autograd.grad(out.sum(), tensors)) if needs_grad else out

        return run

    base = {"enable_gqa": True} if setting in SDPA and setting != "enable_gqa" else {}
    a, b = check_both_orders(call(base), call({**base, setting: values[setting]}))
    if setting not in ("num_splits", "deterministic") and not (setting == "enable_gqa" and kv_heads == 4):
        assert not are_same(a, b), "the case says nothing"


@pytest.mark.parametrize("function", ["flash_attn_func", "scaled_dot_product_attention", "attention"])
@pytest.mark.parametrize("make_scale", [lambda: torch.tensor(0.5), lambda: np.array(0.5)], ids=["tensor", "array"])
def test_a_number_that_may_change_is_read_at_every_call(function, make_scale):
    tensors = qkv(sk=17, kv_heads=4)
    name = "scale" if function.startswith("scaled") else "softmax_scale"
    scale = make_scale()
    for value in (0.5, 0.25, 0.5):
        scale[...] = value
        for _ in range(2):
            got = getattr(ht, function)(*tensors, **{name: scale})
            assert torch.equal(got, getattr(ht, function)(*tensors, **{name: value}))


def test_a_number_gets_no_gradient():
    q, k, v = qkv(sk=17, kv_heads=4)
    scale = torch.nn.Parameter(torch.tensor(0.5))
    for call in (
        lambda: ht.flash_attn_func(q, k, v, softmax_scale=scale),
        lambda: ht.scaled_dot_product_attention(q, k, v, scale=scale),
        lambda: ht.attention(q, k, v, softmax_scale=scale),
    ):
        with pytest.raises(ValueError, match="softmax_scale requires a gradient: must be a number"):
            call()


def num_plans():
    return len({id(x.plan) for x in _plans._kept.values() if isinstance(x, _eager.Entry)})


def test_threads_of_pytorch_are_part_of_a_key():
    q, k, v = (x.requires_grad_() for x in qkv())
    threads = torch.get_num_threads()
    try:
        for call in (
            lambda: ht.attention(q, k, v, causal=True),
            lambda: ht.flash_attn_func(q, k, v),
            lambda: torch.autograd.grad(ht.attention(q, k, v).sum(), q)[0],
        ):
            headrace.cache_clear()
            wanted, _, _ = call(), call(), call()  # looked up by key, then by settings
            before = num_plans()
            for _ in range(2):
                for number in (threads + 1, threads):
                    torch.set_num_threads(number)
                    assert torch.equal(call(), wanted)
                assert num_plans() == 2 * before
    finally:
        torch.set_num_threads(threads)
