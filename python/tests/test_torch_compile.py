"""headrace.torch and observers of operators: torch.compile, fake tensors, autocast, autograd, the profiler."""

import pytest
from torch_data import DEVICES, array, check, expected, make, qkv, same_bits, torch

import headrace.torch as ht

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")


def functions(device):
    """Every function with example arguments."""
    q, k, v = qkv(device)
    heads_first = tuple(x.transpose(1, 2) for x in (q, k, v))
    cu = torch.tensor([0, 10, 34], dtype=torch.int32, device=device)
    flat = make((34, 4, 16), device=device)
    slopes = make((4,), device=device).abs()
    mask = torch.ones((17, 29), dtype=torch.bool, device=device).tril(5)
    return {
        "flash_attn_func": lambda: ht.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes),
        "flash_attn_func lse": lambda: ht.flash_attn_func(q, k, v, window_size=(4, 4), return_attn_probs=True),
        "qkvpacked": lambda: ht.flash_attn_qkvpacked_func(torch.stack([q, q, q], 2), causal=True),
        "kvpacked": lambda: ht.flash_attn_kvpacked_func(q, torch.stack([k, v], 2)),
        "varlen": lambda: ht.flash_attn_varlen_func(flat, flat, flat, cu, cu, 24, 24, causal=True),
        "sdpa": lambda: ht.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True),
        "sdpa mask": lambda: ht.scaled_dot_product_attention(*heads_first, mask, enable_gqa=True),
        "attention": lambda: ht.attention(q, k, v, causal=True, sinks=slopes, softcap=5.0, return_lse=True),
        "attention bhsd": lambda: ht.attention(*heads_first, layout="bhsd", return_lse=True),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(functions("cpu")))
def test_compiles_without_graph_breaks(device, name):
    function = functions(device)[name]
    eager = function()
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")()
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (eager, compiled)), strict=True):
        assert same_bits(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("device", DEVICES)
def test_compiles_with_inductor_and_dynamic_shapes(device):
    def model(q, k, v):
        out = ht.flash_attn_func(q * 2, k, v, causal=True)
        return out.relu() + 1

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for sq, sk in ((17, 29), (23, 31), (64, 64)):
        inputs = qkv(device, sq=sq, sk=sk)
        assert (compiled(*inputs) - model(*inputs)).abs().max() < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_plain_sdpa_reaches_us(device):
    dtype = torch.float16 if device == "cuda" else torch.float32
    q, k, v = (make((2, 4, 64, 16), dtype, device, i) for i in range(3))
    plain = torch.nn.functional.scaled_dot_product_attention
    torch._dynamo.reset()
    with ht.replace_sdpa(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        ours = torch.compile(lambda q, k, v: plain(q, k, v, is_causal=True), fullgraph=True)(q, k, v)
    assert same_bits(ours, ht.scaled_dot_product_attention(q, k, v, is_causal=True))


@pytest.mark.parametrize("device", DEVICES)
def test_the_operator_passes_pytorchs_own_checks(device):
    q, k, v = qkv(device)
    nothing = (None,) * 16
    options = (None, 0.0, 0.0, -1, -1, 0, 0, 1, 0, False, False, False, False, 0)
    for layout, lse, probs in ((False, True, False), (True, False, False), (False, True, True)):
        tensors = tuple(x.transpose(1, 2) for x in (q, k, v)) if layout else (q, k, v)
        arguments = (*tensors, *nothing, *options, layout, lse, probs)
        torch.library.opcheck(torch.ops.headrace.attention.default, arguments)
    packed = make((2, 17, 3, 4, 16), device=device).requires_grad_()
    of_keys = make((2, 29, 2, 2, 16), device=device).requires_grad_()
    for operands in ((None, packed), (q.requires_grad_(), of_keys)):
        arguments = (*operands, *nothing, *options, False, True, False)
        torch.library.opcheck(torch.ops.headrace.attention_packed.default, arguments)
        out, lse, _ = (t.detach() for t in torch.ops.headrace.attention_packed(*arguments))
        operands = tuple(None if t is None else t.detach() for t in operands)
        arguments = (out, None, *operands, out, lse, *nothing, *options, False)
        torch.library.opcheck(torch.ops.headrace.attention_packed_backward.default, arguments)


@pytest.mark.parametrize("device", DEVICES)
def test_fake_tensors_have_the_shapes_of_real_ones(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = qkv(device, torch.bfloat16, dim_v=24)
    real = ht.attention(q, k, v, return_lse=True, return_probs=True)
    with FakeTensorMode() as mode:
        fake = ht.attention(*(mode.from_tensor(x) for x in (q, k, v)), return_lse=True, return_probs=True)
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def test_meta_tensors_give_meta_results():
    """Also after the same calls with real tensors."""
    for function in (ht.flash_attn_func, ht.attention):
        function(*qkv())
    q, k, v = (x.to("meta") for x in qkv())
    out, lse = ht.attention(q, k, v, return_lse=True)
    assert out.is_meta and out.shape == q.shape and lse.shape == (2, 4, 17)
    assert ht.flash_attn_func(q, k, v).is_meta and ht.attention(q, k, v).is_meta


def test_dropout_compiles_and_follows_manual_seed():
    q, k, v = qkv()
    torch._dynamo.reset()
    compiled = torch.compile(lambda: ht.flash_attn_func(q, k, v, 0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first, second = compiled(), compiled()
    torch.manual_seed(1)
    assert same_bits(compiled(), first) and not same_bits(first, second)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_autocast_casts_to_its_dtype(device, is_compiled):
    q, k, v = qkv(device)

    def model(q, k, v):
        with torch.autocast(device, dtype=torch.bfloat16):
            return ht.flash_attn_func(q, k, v, causal=True)

    torch._dynamo.reset()
    out = (torch.compile(model, fullgraph=True, backend="aot_eager") if is_compiled else model)(q, k, v)
    low = [x.bfloat16() for x in (q, k, v)]
    assert same_bits(out, ht.flash_attn_func(*low, causal=True))
    check(out, expected(*low, causal=True)[0], low[0])


def test_autocast_leaves_doubles_alone_and_takes_mixed_inputs():
    q, k, v = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ht.attention(q.double(), k.double(), v.double()).dtype == torch.float64
        mixed = ht.attention(q, k.bfloat16(), v, bias=make((1, 1, 17, 29), torch.float16))
    assert mixed.dtype == torch.bfloat16


# ---- gradients (their values: test_torch_backward.py) ----


def test_forward_without_grad_has_no_graph():
    q, k, v = qkv()
    q.requires_grad_()
    with torch.no_grad():
        assert not ht.flash_attn_func(q, k, v).requires_grad
    with torch.inference_mode():
        assert not ht.flash_attn_func(q, k, v).requires_grad
    assert ht.flash_attn_func(q, k, v).requires_grad


def test_calls_that_were_made_before_differentiate_too(monkeypatch):
    from headrace.torch import _backward

    seen = []

    def doubled(dout, dlse, q, k, v, out, lse, *rest):
        seen.append((lse.shape, (rest[-3], rest[-1])))  # deterministic, heads_first
        return 2 * dout, k.clone(), v.clone(), q.new_empty(0), q.new_empty(0)

    monkeypatch.setattr(_backward, "attention_backward", doubled)
    q, k, v = (x.requires_grad_() for x in qkv(sk=17, kv_heads=4))
    for deterministic in (False, True, True):
        q.grad = None
        ht.flash_attn_func(q, k, v, deterministic=deterministic).sum().backward()
        assert (q.grad == 2).all()
    heads_first = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    for _ in range(2):
        ht.scaled_dot_product_attention(*heads_first).sum().backward()
    shape = torch.Size((2, 4, 17))
    assert seen == [(shape, x) for x in ((False, False), (True, False), (True, False), (False, True), (False, True))]


# ---- remembered calls ----


@pytest.fixture(params=["guards", "keys"])
def known_by(request, monkeypatch):
    """A PyTorch with guards, and one without."""
    import headrace
    from headrace.torch import _guards

    if request.param == "keys":
        monkeypatch.setattr(_guards, "_make", None)
    headrace.cache_clear()
    yield request.param
    headrace.cache_clear()


def test_this_pytorch_has_guards_that_see_every_difference():
    from headrace.torch import _guards

    assert _guards._make is not None
    assert not _guards._sees_every_difference(lambda *base: lambda *others: True)
    assert not _guards._sees_every_difference(lambda *base: lambda *others: False)


@pytest.mark.parametrize("device", DEVICES)
def test_calls_that_differ_are_told_apart(device, known_by):
    """Each call runs twice in a row and then among all others; its result never depends on earlier calls."""
    wide = make((2, 5, 4, 32), device=device)
    base = make((2, 5, 4, 16), device=device)
    shifted = torch.empty(base.numel() + 1, device=device)[1:].view_as(base).copy_(base)
    tensors = {
        "base": base, "shape": make((2, 6, 4, 16), device=device), "gaps": wide[..., ::2], "strides": wide[..., 8:24],
        "alignment": shifted, "dtype": base.half(), "gradient": base.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(base.clone()), "no memory": base.to("meta"),
    }  # fmt: skip

    def call(name, is_causal):
        x = tensors[name]
        others = [base if x.shape == base.shape and x.dtype == base.dtype and not x.is_meta else x] * 2
        return ht.flash_attn_func(x, *others, causal=is_causal)

    first = {key: call(*key) for key in ((name, is_causal) for name in tensors for is_causal in (False, True))}
    for _ in range(2):
        for key, expected_out in [(k, x) for k, x in first.items() for _ in range(2)]:
            out = call(*key)
            assert out.requires_grad == (key[0] in ("gradient", "parameter")), key
            assert out.is_meta == (key[0] == "no memory") and out.stride() == expected_out.stride()
            assert out.is_meta or same_bits(out, expected_out), key


@pytest.mark.parametrize("device", DEVICES)
def test_modes_between_known_calls_are_honoured(device, known_by):
    q, k, v = (x.requires_grad_() for x in qkv(device))

    def call(q=q, k=k, v=v):
        return ht.flash_attn_func(q, k, v)

    for _ in range(3):
        plain = call()
        assert plain.requires_grad
        with torch.no_grad():
            assert not call().requires_grad and same_bits(call(), plain)
        with torch.inference_mode():
            assert call().is_inference()
        with torch.autocast(device, dtype=torch.bfloat16):
            assert call().dtype == torch.bfloat16
        assert same_bits(torch.vmap(call)(*(torch.stack([x, x]) for x in (q, k, v)))[1], plain)
        threads = torch.get_num_threads()
        torch.set_num_threads(threads + 1)
        assert same_bits(call(), plain)
        torch.set_num_threads(threads)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_known_calls_keep_no_tensor_alive(known_by, needs_grad):
    import weakref

    q = make((1, 3, 2, 8)).requires_grad_(needs_grad)
    for _ in range(3):
        out = ht.flash_attn_func(q, q.clone(), q.clone())
    seen = [weakref.ref(x) for x in (q, out)]
    del q, out
    assert [x() for x in seen] == [None, None]


# ---- observers ----


def test_the_profiler_sees_the_operator():
    q, k, v = qkv()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ht.flash_attn_func(q, k, v)
    assert any(event.key == "headrace::attention" for event in profile.key_averages())


def test_dispatch_modes_and_subclasses_see_the_operator():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    q, k, v = qkv()
    with Watch():
        ht.flash_attn_func(q, k, v)
    assert "headrace.attention.default" in seen

    class Tagged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(f"tagged {function}")
            plain = [x.as_subclass(torch.Tensor) if isinstance(x, Tagged) else x for x in args]
            return function(*plain, **(kwargs or {}))

    out = ht.flash_attn_func(q.as_subclass(Tagged), k, v)
    assert same_bits(out, ht.flash_attn_func(q, k, v))
    assert any(name.startswith("tagged headrace.attention") for name in seen)


def test_export_has_the_operator():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return ht.flash_attn_func(q, k, v, causal=True)

    q, k, v = qkv()
    exported = torch.export.export(Model(), (q, k, v))
    assert "torch.ops.headrace.attention.default" in exported.graph_module.code
    assert same_bits(exported.module()(q, k, v), Model()(q, k, v))
    assert array(exported.module()(q, k, v)).any()
