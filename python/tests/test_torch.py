"""headrace.torch: results against the float64 reference and against PyTorch."""

import inspect
import threading

import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_data import DEVICES, DTYPES, array, check, expected, make, qkv, same_bits, torch

import headrace
import headrace.torch as ht
from headrace.torch import _eager

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")
F = torch.nn.functional


# ---- flash-attn's functions ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attn_func_equals_the_reference(device, dtype, causal):
    q, k, v = qkv(device, dtype)
    options = {"causal": causal, "softcap": 20.0, "softmax_scale": 0.2}
    out, lse, probs = ht.flash_attn_func(
        q, k, v, causal=causal, window_size=(9, 3), softcap=20.0, softmax_scale=0.2, return_attn_probs=True
    )
    reference, reference_lse, _ = expected(q, k, v, window=(9, 3), **options)
    check(out, reference, q)
    oracle.check_lse(array(lse), reference_lse)
    assert probs.numel() == 0 and probs.dtype == q.dtype
    assert out.is_contiguous() and lse.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
def test_alibi_is_flash_attns(device):
    q, k, v = qkv(device)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=device)
    out = ht.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes)
    check(out, expected(q, k, v, causal=True, alibi_slopes=slopes)[0], q)
    of_batch = torch.stack([slopes, 2 * slopes])
    out = ht.flash_attn_func(q, k, v, alibi_slopes=of_batch)
    check(out, expected(q, k, v, alibi_slopes=of_batch)[0], q)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_functions_read_the_parts_where_they_lie(device):
    qkv_packed = make((2, 19, 3, 4, 16), device=device)
    q, k, v = qkv_packed.unbind(2)
    assert same_bits(ht.flash_attn_qkvpacked_func(qkv_packed, causal=True), ht.flash_attn_func(q, k, v, causal=True))
    kv_packed = make((2, 23, 2, 2, 16), device=device)
    k, v = kv_packed.unbind(2)
    out = ht.flash_attn_kvpacked_func(q, kv_packed, 0.0, 0.3, True, (5, 0))
    assert same_bits(out, ht.flash_attn_func(q, k, v, softmax_scale=0.3, causal=True, window_size=(5, 0)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_varlen_equals_its_sequences(device, dtype):
    cu_q, cu_k = [0, 5, 5, 19], [0, 9, 12, 30]
    q, k, v = make((19, 4, 16), dtype, device), make((30, 2, 16), dtype, device, 1), make((30, 2, 16), dtype, device, 2)
    tensors = [torch.tensor(cu, dtype=torch.int32, device=device) for cu in (cu_q, cu_k)]
    out, lse, _ = ht.flash_attn_varlen_func(q, k, v, *tensors, 14, 18, causal=True, return_attn_probs=True)
    reference, reference_lse = oracle.ragged(array(q), array(k), array(v), cu_q, cu_k, causal=True)
    check(out, reference, q)
    oracle.check_lse(array(lse), reference_lse)
    if device == "cpu":
        assert same_bits(ht.flash_attn_varlen_func(q, k, v, *tensors, causal=True), out)
    else:
        with pytest.raises(ValueError, match="max_seqlen_q: not given"):
            ht.flash_attn_varlen_func(q, k, v, *tensors, causal=True)


OPTIONS = {
    "softmax_scale": 0.3,
    "causal": True,
    "window_size": (5, 2),
    "softcap": 3.0,
    "alibi_slopes": [0.5, 0.25, 0.125, 0.0625],
}


def varlen(q, k, v, **options):
    """flash_attn_varlen_func of a batch whose sequences all have their full length."""
    cu_q, cu_k = (
        torch.arange(0, (x.shape[0] + 1) * x.shape[1], x.shape[1], dtype=torch.int32, device=x.device) for x in (q, k)
    )
    flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    return ht.flash_attn_varlen_func(*flat, cu_q, cu_k, q.shape[1], k.shape[1], **options).view(*q.shape[:3], -1)


def of_pages(q, k, v, **options):
    """flash_attn_varlen_func of keys in pages, one for each sequence."""
    cu_q = torch.arange(0, (q.shape[0] + 1) * q.shape[1], q.shape[1], dtype=torch.int32, device=q.device)
    table = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)[:, None]
    used = torch.full((q.shape[0],), k.shape[1], dtype=torch.int32, device=q.device)
    out = ht.flash_attn_varlen_func(
        q.reshape(-1, *q.shape[2:]), k, v, cu_q, None, q.shape[1], k.shape[1], block_table=table, seqused_k=used,
        **options,
    )  # fmt: skip
    return out.view(*q.shape[:3], -1)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    "function",
    [
        ht.flash_attn_func,
        lambda q, k, v, **options: ht.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), **options),
        varlen,
        of_pages,
        ht.flash_attn_with_kvcache,
    ],
    ids=["plain", "kvpacked", "varlen", "pages", "kvcache"],
)
def test_every_option_reaches_every_function(function, option):
    q, k, v = make((2, 19, 4, 16)), make((2, 23, 4, 16), seed=1), make((2, 23, 4, 16), seed=2)
    value = OPTIONS[option]
    if option == "alibi_slopes":
        value = torch.tensor(value)
    window = {"window": value} if option == "window_size" else {option: value}
    out = function(q, k, v, **{option: value})
    check(out, expected(q, k, v, **window)[0], q)
    assert not same_bits(out, function(q, k, v)), "an option without effect tests nothing"


FA2 = (
    "dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None "
    "deterministic=False return_attn_probs=False"
).split()
VARLEN = "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k".split()
FA3_KEYWORDS = {"qv", "q_descale", "k_descale", "v_descale", "attention_chunk", "num_splits", "pack_gqa", "sm_margin"}


@pytest.mark.parametrize(
    ("function", "leading", "trailing"),
    [
        (ht.flash_attn_func, ["q", "k", "v"], []),
        (ht.flash_attn_qkvpacked_func, ["qkv"], []),
        (ht.flash_attn_kvpacked_func, ["q", "kv"], []),
        (ht.flash_attn_varlen_func, VARLEN, ["block_table=None"]),
    ],
)
def test_arguments_are_flash_attns(function, leading, trailing):
    parameters = inspect.signature(function).parameters
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional[: len(leading)]] == leading
    texts = [f"{p.name}={p.default}".replace(" ", "") for p in positional[len(leading) :]]
    assert texts == FA2 + trailing
    if "packed" not in function.__name__:
        assert {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY} >= FA3_KEYWORDS


def test_dropped_probabilities_are_negative():
    q, k, v = qkv(sq=64, sk=64)
    torch.manual_seed(3)
    out, _, probs = ht.flash_attn_func(q, k, v, 0.3, causal=True, return_attn_probs=True)
    reference = expected(q, k, v, causal=True)[2]
    assert abs(array(probs.abs()) - reference).max() < 1e-6
    share = (probs < 0).sum() / (probs != 0).sum()
    assert 0.27 < share < 0.33
    kept = array(probs.clamp(min=0)) / 0.7
    values = array(v).repeat(2, axis=2)
    assert abs(kept @ values.transpose(0, 2, 1, 3) - array(out).transpose(0, 2, 1, 3)).max() < 1e-4


def test_dropout_follows_manual_seed():
    q, k, v = qkv()
    torch.manual_seed(1)
    first = ht.flash_attn_func(q, k, v, 0.5)
    second = ht.flash_attn_func(q, k, v, 0.5)
    torch.manual_seed(1)
    assert same_bits(ht.flash_attn_func(q, k, v, 0.5), first)
    assert not same_bits(first, second)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_of_a_seed_is_the_same_on_every_device(device):
    q, k, v = qkv(device, sq=40, sk=70)
    arguments = {"dropout_p": 0.4, "dropout_seed": 2**64 - 3, "dropout_offset": 5}
    _, probs = ht.attention(q, k, v, **arguments, return_probs=True)
    host = headrace.attention(*(x.cpu().numpy() for x in (q, k, v)), **arguments, return_probs=True)[1]
    assert ((array(probs) == 0) == (host == 0)).all()


# ---- attention() ----


@st.composite
def calls(draw):
    tensors = draw(st.sets(st.sampled_from(["bias", "mask", "alibi_slopes", "sinks", "tree_mask"])))
    return {
        "causal": draw(st.sampled_from([False, True, "top-left"])),
        "window": draw(st.sampled_from([(-1, -1), (None, None), (6, 0), (0, 4), (-1, 2)])),
        "softcap": draw(st.sampled_from([0.0, 3.0])),
    }, tensors


@pytest.mark.parametrize("device", DEVICES)
@given(call=calls(), dtype=st.sampled_from(DTYPES), layout=st.sampled_from(["bshd", "bhsd"]))
def test_attention_equals_the_reference(device, call, dtype, layout):
    options, names = call
    q, k, v = qkv(device, dtype, dim_v=24)
    generator = torch.Generator().manual_seed(5)
    extras = {
        "bias": make((1, 4, 17, 1), dtype, device),
        "mask": (torch.rand((2, 1, 17, 29), generator=generator) < 0.8).to(device),
        "alibi_slopes": make((4,), device=device).abs(),
        "sinks": make((4,), device=device),
        "tree_mask": torch.randint(-(2**31), 2**31, (2, 17, 1), generator=generator, dtype=torch.int32).to(device),
    }
    options |= {n: extras[n] for n in names}
    given_qkv = (q, k, v) if layout == "bshd" else tuple(x.transpose(1, 2) for x in (q, k, v))
    out, lse = ht.attention(*given_qkv, **options, layout=layout, return_lse=True)
    reference_options = dict(options, window=tuple(-1 if x is None else x for x in options["window"]))
    if "tree_mask" in names:
        reference_options["tree_mask"] = array(extras["tree_mask"]).view("uint32")
    reference, reference_lse, _ = expected(q, k, v, **reference_options)
    check(out if layout == "bshd" else out.transpose(1, 2), reference, q)
    oracle.check_lse(array(lse), reference_lse)


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_of_any_stride(device):
    q, k, v = qkv(device)
    out = ht.attention(q, k, v)
    gaps = torch.stack([q, q + 1], dim=-1)[..., 0]
    assert gaps.stride(-1) == 2
    assert same_bits(ht.attention(gaps, k, v), out)
    wide = torch.full((2, 17, 4, 40), float("nan"), device=device)
    wide[..., 8:24] = q
    assert same_bits(ht.attention(wide[..., 8:24], k, v), out)
    shifted = torch.zeros(q.numel() + 1, device=device)[1:].view_as(q).copy_(q)
    assert shifted.data_ptr() % 16 == 4
    assert same_bits(ht.attention(shifted, k, v), out)
    heads = k[:, :, :1].expand_as(k)
    assert same_bits(ht.attention(q, heads, v), ht.attention(q, heads.contiguous(), v))


@pytest.mark.parametrize("device", DEVICES)
def test_empty_batches_and_sequences(device):
    q, k, v = qkv(device, batch=0)
    assert ht.attention(q, k, v).shape == (0, 17, 4, 16)
    q, k, v = qkv(device, sk=0)
    out, lse = ht.attention(q, k, v, return_lse=True)
    assert not out.any() and torch.isneginf(lse).all()


def test_threads_share_plans_and_no_arguments():
    inputs = [tuple(x + i for x in qkv()) for i in range(4)]
    outs = [ht.flash_attn_func(*x) for x in inputs]
    wrong = []

    def work(i):
        for _ in range(100):
            if not torch.equal(ht.flash_attn_func(*inputs[i]), outs[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_cache_of_plans_stays_bounded():
    from headrace import _plans

    headrace.cache_clear()
    q, k, v = qkv(batch=1, heads=1, kv_heads=1, dim=4)
    for scale in range(_plans._MAX_PLANS + 10):
        ht.attention(q, k, v, softmax_scale=scale * 1e-3)
    assert len(_plans._kept) <= _plans._MAX_PLANS
    headrace.cache_clear()
    assert not _plans._kept


# ---- scaled_dot_product_attention ----


def test_the_signature_is_pytorchs():
    parameters = list(inspect.signature(ht.scaled_dot_product_attention).parameters.values())
    assert [p.name for p in parameters] == "query key value attn_mask dropout_p is_causal scale enable_gqa".split()
    assert [p.default for p in parameters[3:]] == [None, 0.0, False, None, False]


SHAPES = [
    ((2, 4, 13, 16), (2, 4, 21, 16)),
    ((2, 4, 21, 16), (2, 4, 13, 16)),
    ((4, 13, 16), (4, 21, 16)),
    ((13, 16), (21, 16)),
    ((2, 3, 4, 13, 16), (2, 3, 4, 21, 16)),
    ((2, 4, 13, 16), (2, 1, 21, 16)),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("q_shape", "k_shape"), SHAPES)
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "float rows", "scale"])
def test_sdpa_equals_pytorchs(device, q_shape, k_shape, kind):
    q, k, v = make(q_shape, device=device, seed=1), make(k_shape, device=device, seed=2), make(k_shape, device=device)
    sq, sk = q_shape[-2], k_shape[-2]
    arguments = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": torch.rand((sq, sk), device=device) < 0.7},
        "float": {"attn_mask": torch.randn((*q_shape[:-2], sq, sk), device=device)},
        "float rows": {"attn_mask": torch.randn((sq, 1), device=device).expand(sq, sk)},
        "scale": {"scale": 0.7},
    }[kind]
    out = ht.scaled_dot_product_attention(q, k, v, **arguments)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **{
            n: x.double() if n == "attn_mask" and x.is_floating_point() else x for n, x in arguments.items()
        })  # fmt: skip
    rows_without_keys = torch.isnan(theirs)
    oracle.check_out(array(out), array(theirs.masked_fill(rows_without_keys, 0)), "float32")


@pytest.mark.parametrize("device", DEVICES)
def test_sdpas_result_lies_as_the_query_does(device):
    q, k, v = make((2, 4, 5, 16), device=device), make((2, 4, 7, 16), device=device), make((2, 4, 7, 8), device=device)
    assert ht.scaled_dot_product_attention(q, k, v).is_contiguous()
    across = q.transpose(1, 2).contiguous().transpose(1, 2)
    out = ht.scaled_dot_product_attention(across, k, v)
    assert out.transpose(1, 2).is_contiguous()
    assert same_bits(out, ht.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize("device", DEVICES)
def test_sdpa_groups_heads_only_when_asked(device):
    q, k, v = make((2, 6, 5, 16), device=device), make((2, 2, 7, 16), device=device), make((2, 2, 7, 16), device=device)
    out = ht.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    theirs = F.scaled_dot_product_attention(q, *(x.repeat_interleave(3, 1) for x in (k, v)))
    assert (out - theirs).abs().max() < 1e-5
    with pytest.raises(ValueError, match="6, 2 and 2 heads: must be equal or 1; pass enable_gqa=True"):
        ht.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_plain_sdpa_calls_reach_us_while_replaced(device):
    dtype = torch.float16 if device == "cuda" else torch.float32
    q, k, v = (make((2, 4, 33, 16), dtype, device, i) for i in range(3))
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    seen = _count_calls()
    with ht.replace_sdpa(), seen, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        ours = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert seen.calls == 1
    assert same_bits(ours, ht.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert (ours - theirs).abs().max() < (2e-3 if dtype == torch.float16 else 1e-5)
    F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert seen.calls == 1


@pytest.mark.parametrize("device", DEVICES)
def test_pytorchs_backward_takes_our_forward(device):
    dtype = torch.float16 if device == "cuda" else torch.float32
    grads = []
    for is_ours in (False, True):
        inputs = [make((2, 4, 33, 16), dtype, device, i).requires_grad_() for i in range(3)]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            if is_ours:
                with ht.replace_sdpa():
                    F.scaled_dot_product_attention(*inputs, is_causal=True).square().sum().backward()
            else:
                F.scaled_dot_product_attention(*inputs, is_causal=True).square().sum().backward()
        grads.append([x.grad for x in inputs])
    for theirs, ours in zip(*grads, strict=True):
        assert theirs.abs().max() > 0.1
        assert (ours - theirs).abs().max() < (2e-2 if dtype == torch.float16 else 1e-4)


@pytest.mark.skipif(
    not hasattr(torch.nn.attention, "activate_flash_attention_impl"), reason="this PyTorch has no list of them"
)
def test_pytorchs_list_of_implementations_has_us():
    assert "headrace" in torch.nn.attention.list_flash_attention_impls()
    q, k, v = (make((1, 2, 9, 16), seed=i) for i in range(3))
    seen = _count_calls()
    torch.nn.attention.activate_flash_attention_impl("headrace")
    try:
        with seen:
            F.scaled_dot_product_attention(q, k, v)
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    assert seen.calls == 1
    with seen:
        F.scaled_dot_product_attention(q, k, v)
    assert seen.calls == 1


class _count_calls:
    """Counts the library's runs within the context."""

    def __enter__(self):
        self.calls = getattr(self, "calls", 0)
        self._compute = _eager.compute

        def compute(*arguments):
            self.calls += 1
            return self._compute(*arguments)

        _eager.compute = compute
        return self

    def __exit__(self, *error):
        _eager.compute = self._compute


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
class TestGpu:
    def test_work_goes_to_the_current_stream(self):
        q, k, v = qkv("cuda", torch.float16, sq=512, sk=512)
        expected_out = ht.flash_attn_func(q, k, v)
        stream = torch.cuda.Stream()
        late = torch.zeros_like(q)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            late.copy_(q)
            out = ht.flash_attn_func(late, k, v)
        assert not stream.query(), "the call waited for the stream"
        stream.synchronize()
        assert same_bits(out, expected_out)

    def test_a_graph_replays_it(self):
        q, k, v = qkv("cuda", torch.float16)
        ht.flash_attn_func(q, k, v, causal=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = ht.flash_attn_func(q, k, v, causal=True)
        q.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(out, ht.flash_attn_func(q, k, v, causal=True))

    def test_check_names_lengths_that_broke_a_rule(self):
        q, k, v = make((8, 2, 16), device="cuda"), make((8, 2, 16), device="cuda"), make((8, 2, 16), device="cuda")
        good = torch.tensor([0, 4, 8], dtype=torch.int32, device="cuda")
        bad = torch.tensor([0, 4, 99], dtype=torch.int32, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        headrace.check("cuda:0", stream)
        ht.flash_attn_varlen_func(q, k, v, good, bad, 8, 8)
        with pytest.raises(ValueError, match="cu_seqlens"):
            headrace.check("cuda:0", stream)
        headrace.check("cuda:0", stream)
        with pytest.raises(ValueError, match="99"):
            ht.attention(q, k, v, cu_seqlens_q=good, cu_seqlens_k=bad, max_seqlen_q=8, max_seqlen_k=8, checked=True)

    def test_arrays_of_cupy_and_dlpack(self):
        cupy = pytest.importorskip("cupy")
        q, k, v = qkv("cuda")
        arrays = [cupy.from_dlpack(x) for x in (q, k, v)]
        out = headrace.attention(*arrays, causal=True)
        cupy.cuda.get_current_stream().synchronize()
        assert isinstance(out, cupy.ndarray)
        assert (cupy.asnumpy(out) == array(ht.attention(q, k, v, causal=True)).astype("float32")).all()

    def test_tensors_on_two_devices_are_refused(self):
        q, k, v = qkv("cuda")
        with pytest.raises(ValueError, match="k is on cpu:0: must be on cuda:0 like q"):
            ht.attention(q, k.cpu(), v)
