"""The plan/run wrappers under FlashInfer's names: bits of attention over gathered keys, and a float64 reference."""

import math

import pytest
from test_pages import int32, paged
from torch_data import DEVICES, array, make, same_bits, torch

import headrace
import headrace.torch as ht

KEYS = [0, 1, 15, 16, 17, 64, 100]
QUERIES = [2, 0, 15, 3, 1, 5, 40]
HEADS, KV_HEADS, DIM = 4, 2, 24
LOG2_E = 1 / math.log(2)


def indptr_of(counts, device="cpu"):
    return int32([sum(counts[:i]) for i in range(len(counts) + 1)], device)


class Case:
    """Keys of sequences in shuffled pages, the rest NaN, with their table as FlashInfer has it."""

    def __init__(self, page_size=16, layout="NHD", device="cpu", dtype=torch.float32, keys=KEYS, seed=0):
        shape = (len(keys), max(keys), KV_HEADS, DIM)
        self.keys, self.k, self.v = keys, make(shape, dtype, device, seed + 2), make(shape, dtype, device, seed + 3)
        k_pages, v_pages, table = paged(self.k, self.v, keys, page_size, seed + 3)
        counts = [-(-n // page_size) for n in keys]
        self.pages = torch.stack((k_pages, v_pages), 1)
        if layout == "HND":
            self.pages = self.pages.transpose(2, 3).contiguous()
        indices = torch.cat([row[:n] for row, n in zip(table, counts)])
        last = int32([n - (c - 1) * page_size if c else 0 for n, c in zip(keys, counts)], device)
        self.table = (indptr_of(counts, device), indices, last)
        self.sizes = (HEADS, KV_HEADS, DIM, page_size)
        self.layout = layout

    def gathered(self, b):
        return self.k[b : b + 1, : self.keys[b]], self.v[b : b + 1, : self.keys[b]]


def reference(q, k, v, mask, scale=None, cap=0.0, sinks=None):
    """[seqlen, heads, dim] and lse [seqlen, heads] in base 2, in float64."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), *(x.double().repeat_interleave(groups, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)), -1)
    probs = torch.softmax(scores, -1).nan_to_num(0)[..., : k.shape[0]]
    lse = torch.logsumexp(scores, -1) if scores.shape[-1] else scores.new_full(scores.shape[:2], float("-inf"))
    return torch.einsum("hqk,khd->qhd", probs, v), lse.transpose(0, 1) * LOG2_E


def seen(sq, sk, causal, window_left, device):
    at = torch.arange(sq, device=device)[:, None] + sk - sq
    keys = torch.arange(sk, device=device)[None]
    mask = keys <= at if causal else torch.ones(sq, sk, dtype=torch.bool, device=device)
    return mask & (keys >= at - window_left) if window_left >= 0 else mask


def is_close(got, want, tolerance=1e-5):
    got, want = array(got), array(want)
    assert got.shape == want.shape
    infinite = want == -math.inf
    assert (got[infinite] == -math.inf).all()
    assert abs(got[~infinite] - want[~infinite]).max(initial=0) < tolerance


OPTIONS = [
    {},
    {"window_left": 7},
    {"window_left": 0},
    {"logits_soft_cap": 0.5},
    {"sm_scale": 0.3, "window_left": 20, "logits_soft_cap": 3.0},
]


def ours(options, causal=False):
    """The options of attention()."""
    names = {"window": (options.get("window_left", -1), -1), "softcap": options.get("logits_soft_cap", 0.0)}
    return {"softmax_scale": options.get("sm_scale"), "causal": causal, **names}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 7, 16])
@pytest.mark.parametrize("options", OPTIONS)
def test_decode_has_the_bits_of_gathered_keys(options, page_size, layout, device):
    case = Case(page_size, layout, device)
    q = make((len(KEYS), HEADS, DIM), device=device, seed=1)
    wrapper = ht.BatchDecodeWithPagedKVCacheWrapper(None, layout)
    wrapper.plan(*case.table, *case.sizes, **options)
    out, lse = wrapper.run(q, case.pages, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:2] and lse.dtype == torch.float32 and lse.is_contiguous()
    for b, n in enumerate(KEYS):
        k, v = case.gathered(b)
        mask = seen(1, n, False, options.get("window_left", -1), device)
        want = reference(q[b : b + 1], k[0], v[0], mask, options.get("sm_scale"), options.get("logits_soft_cap", 0))
        is_close(out[b : b + 1], want[0])
        is_close(lse[b : b + 1], want[1])
        if device == "cpu" and n:
            one, natural = ht.attention(q[b][None, None], k, v, return_lse=True, **ours(options))
            assert same_bits(out[b], one[0, 0]) and same_bits(lse[b], natural[0, :, 0] * LOG2_E)
            single = ht.single_decode_with_kv_cache(
                q[b], *(x[0].transpose(0, 1) if layout == "HND" else x[0] for x in (k, v)), layout, return_lse=True,
                **options,
            )  # fmt: skip
            assert same_bits(single[0], out[b]) and same_bits(single[1], lse[b])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 7, 16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_prefill_has_the_bits_of_gathered_keys(options, causal, page_size, layout, device):
    case = Case(page_size, layout, device)
    q, first = make((sum(QUERIES), HEADS, DIM), device=device, seed=1), indptr_of(QUERIES)
    wrapper = ht.BatchPrefillWithPagedKVCacheWrapper(None, layout)
    wrapper.plan(first.to(device), *case.table, *case.sizes, causal=causal, **options)
    out, lse = wrapper.run(q, case.pages, return_lse=True)
    ragged = ht.BatchPrefillWithRaggedKVCacheWrapper()
    ragged.plan(first.to(device), indptr_of(KEYS, device), HEADS, KV_HEADS, DIM, causal=causal, **options)
    packed = [torch.cat([x[b, :n] for b, n in enumerate(KEYS)]) for x in (case.k, case.v)]
    both = ragged.run(q, *packed, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:2] and lse.is_contiguous()
    for b, n in enumerate(KEYS):
        k, v = case.gathered(b)
        rows = slice(int(first[b]), int(first[b + 1]))
        mask = seen(QUERIES[b], n, causal, options.get("window_left", -1), device)
        want = reference(q[rows], k[0], v[0], mask, options.get("sm_scale"), options.get("logits_soft_cap", 0))
        for results in ((out, lse), both):
            is_close(results[0][rows], want[0])
            is_close(results[1][rows], want[1])
        if device == "cpu" and n and QUERIES[b]:
            one, natural = ht.attention(q[rows][None], k, v, return_lse=True, **ours(options, causal))
            assert same_bits(out[rows], one[0])
            assert same_bits(lse[rows], natural[0].transpose(0, 1) * LOG2_E)
            single = ht.single_prefill_with_kv_cache(q[rows], k[0], v[0], causal=causal, return_lse=True, **options)
            assert same_bits(single[0], one[0]) and same_bits(single[1], lse[rows])
    if device == "cpu":
        assert same_bits(both[0], out) and same_bits(both[1], lse)


@pytest.mark.parametrize("device", DEVICES)
def test_results_go_where_they_are_wanted(device):
    case = Case(device=device)
    q = make((len(KEYS), HEADS, DIM), device=device, seed=1)
    decode = ht.BatchDecodeWithPagedKVCacheWrapper()
    decode.plan(*case.table, *case.sizes)
    prefill = ht.BatchPrefillWithPagedKVCacheWrapper()
    prefill.plan(indptr_of([1] * len(KEYS)), *case.table, *case.sizes, causal=True)
    for wrapper in (decode, prefill):
        want, want_lse = wrapper.run(q, case.pages, return_lse=True)
        for out in (torch.empty_like(q), torch.empty_like(q.transpose(0, 1)).transpose(0, 1), q.clone()):
            lse = torch.empty_like(want_lse)
            got = wrapper.run(out.copy_(q), case.pages, out=out, lse=lse, return_lse=True)
            assert got[0] is out and got[1] is lse and same_bits(out, want) and same_bits(lse, want_lse)
            assert wrapper.run(q, tuple(case.pages.unbind(1)), out=out.zero_()) is out and same_bits(out, want)
        buffer = torch.empty(q.numel() + 1, device=device)[1:].view_as(q)  # misaligned
        assert same_bits(wrapper.run(q, case.pages, out=buffer), want)
        assert same_bits(wrapper.run_return_lse(q, case.pages)[1], want_lse)


def test_scales_and_sinks():
    case = Case()
    q, sinks = make((len(KEYS), HEADS, DIM), seed=1), make((HEADS,), seed=4)
    wrapper = ht.BatchDecodeWithPagedKVCacheWrapper()
    wrapper.plan(*case.table, *case.sizes, window_left=9, q_data_type="float32", data_type=torch.float32)
    out, lse = wrapper.run(
        q, case.pages, q_scale=0.5, k_scale=3.0, v_scale=-2.0, sinks=sinks, window_left=5, return_lse=True
    )
    assert (lse[0] == -math.inf).all() and (out[0] == 0).all()  # without keys
    for b, n in list(enumerate(KEYS))[1:]:
        k, v = (x[0] for x in case.gathered(b))
        want = reference(q[b : b + 1] * 0.5, k * 3, v * -2, seen(1, n, False, 5, "cpu"), sinks=sinks)
        is_close(out[b : b + 1], want[0])
        is_close(lse[b : b + 1], want[1])
    k, v = (x[0] for x in case.gathered(6))
    mask = torch.rand(5, 100, generator=torch.Generator().manual_seed(1)) < 0.3
    got = ht.single_prefill_with_kv_cache(q[:5], k, v, custom_mask=mask, causal=True, k_scale=2.0, return_lse=True)
    want = reference(q[:5], 2 * k, v, mask)
    is_close(got[0], want[0])
    is_close(got[1], want[1])


def test_pages_of_fp8_count_times_their_scales():
    case = Case(dtype=torch.bfloat16)
    codes = case.pages.nan_to_num(0).to(torch.float8_e4m3fn)
    q = make((len(KEYS), HEADS, DIM), torch.bfloat16, seed=1)
    wrapper = ht.BatchDecodeWithPagedKVCacheWrapper()
    wrapper.plan(*case.table, *case.sizes, q_data_type=torch.bfloat16, kv_data_type="float8_e4m3fn")
    out = wrapper.run(q, codes, k_scale=0.5, v_scale=0.25)
    wrapper.plan(*case.table, *case.sizes)
    want = wrapper.run(q, codes.to(torch.bfloat16), k_scale=0.5, v_scale=0.25)
    assert abs(array(out) - array(want)).max() < 0.02


@pytest.mark.parametrize("device", DEVICES)
def test_several_queries_of_a_decode_are_the_last_tokens(device):
    keys = [n + 3 for n in KEYS]
    case = Case(7, device=device, keys=keys)
    q = make((3 * len(keys), HEADS, DIM), device=device, seed=1)
    wrapper = ht.BatchDecodeWithPagedKVCacheWrapper()
    wrapper.plan(*case.table, *case.sizes, q_len_per_req=3)
    out, lse = wrapper.run(q, case.pages, return_lse=True)
    for b, n in enumerate(keys):
        rows = slice(3 * b, 3 * b + 3)
        want = reference(q[rows], *(x[0] for x in case.gathered(b)), seen(3, n, True, -1, device))
        is_close(out[rows], want[0])
        is_close(lse[rows], want[1])


def graph_buffers(num_entries, device):
    batch = len(KEYS)
    return [torch.zeros(n, dtype=torch.int32, device=device) for n in (batch + 1, num_entries, batch)]


def test_plans_of_a_graph_keep_their_buffers():
    buffers = graph_buffers(40, "cpu")
    wrapper = ht.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(torch.empty(16), *buffers)
    q = make((len(KEYS), HEADS, DIM), seed=1)
    plain = ht.BatchDecodeWithPagedKVCacheWrapper()
    for keys in (KEYS, KEYS[::-1], [16] * len(KEYS)):
        case = Case(keys=keys)
        wrapper.plan(*case.table, *case.sizes, max_seqlen_k=200)
        plain.plan(*case.table, *case.sizes)
        assert same_bits(wrapper.run(q, case.pages), plain.run(q, case.pages))
        assert all(same_bits(buffer[: len(x)], x) for buffer, x in zip(buffers, case.table))
    assert wrapper.is_cuda_graph_enabled and not plain.is_cuda_graph_enabled
    with pytest.raises(ValueError, match="max_seqlen_k=201: must be at most 200, that of the first plan"):
        wrapper.plan(*case.table, *case.sizes, max_seqlen_k=201)
    many = Case(1)
    with pytest.raises(ValueError, match="paged_kv_indices_buffer: 213 entries of this plan: must be at most 40"):
        wrapper.plan(*many.table, *many.sizes)
    few = Case(keys=[3, 4])
    with pytest.raises(ValueError, match="paged_kv_indptr_buffer: 3 entries of this plan: must be equal to 8"):
        wrapper.plan(*few.table, *few.sizes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("max_seqlen_k", [None, 128])
@pytest.mark.parametrize("is_prefill", [False, True])
def test_graphs_read_the_tables_of_later_plans(is_prefill, max_seqlen_k):
    buffers, options = graph_buffers(40, "cuda"), {"max_seqlen_k": max_seqlen_k}
    cases = [Case(keys=keys, device="cuda", dtype=torch.bfloat16, seed=i) for i, keys in enumerate((KEYS, KEYS[::-1]))]
    rows = sum(QUERIES) if is_prefill else len(KEYS)
    q, out = (make((rows, HEADS, DIM), torch.bfloat16, "cuda", i) for i in range(2))
    cache = torch.zeros((64, *cases[0].pages.shape[1:]), dtype=torch.bfloat16, device="cuda")
    if is_prefill:
        kind, first = ht.BatchPrefillWithPagedKVCacheWrapper, [[indptr_of(n, "cuda")] for n in (QUERIES, QUERIES[::-1])]
        wrapper = kind(None, "NHD", True, torch.zeros_like(first[0][0]), *buffers)
    else:
        kind, first = ht.BatchDecodeWithPagedKVCacheWrapper, [[], []]
        wrapper = kind(None, "NHD", True, False, *buffers)
    wrapper.plan(*first[0], *cases[0].table, *cases[0].sizes, **options)
    wrapper.run(q, cache, out=out)  # plans of the library are made before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.run(q, cache, out=out)
    for i in (0, 1, 0):
        case = cases[i]
        cache[: len(case.pages)] = case.pages
        wrapper.plan(*first[i], *case.table, *case.sizes, **options)
        graph.replay()
        plain = kind()
        plain.plan(*first[i], *case.table, *case.sizes)
        assert same_bits(out, plain.run(q, cache))
    headrace.check()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_plan_with_bounds_and_a_run_wait_for_no_gpu():
    case = Case(device="cuda", dtype=torch.bfloat16)
    q = make((len(KEYS), HEADS, DIM), torch.bfloat16, "cuda", 1)
    wrapper = ht.BatchDecodeWithPagedKVCacheWrapper()
    wrapper.plan(*case.table, *case.sizes, max_seqlen_k=100)
    wrapper.run(q, case.pages)
    torch.cuda.set_sync_debug_mode("error")
    try:
        wrapper.plan(*case.table, *case.sizes, max_seqlen_k=100)
        wrapper.run(q, case.pages, return_lse=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_appended_tokens_are_in_their_pages(layout, device):
    case, new = Case(7, layout, device), [0, 1, 9, 0, 3, 64, 20]
    cache = torch.full_like(case.pages, float("nan"))
    tokens = [x for b, n in enumerate(new) for x in range(KEYS[b] - n, KEYS[b])]
    k, v = (torch.cat([x[b, KEYS[b] - n : KEYS[b]] for b, n in enumerate(new)]) for x in (case.k, case.v))
    first, indices, last = case.table
    lengths = ht.get_seq_lens(first, last, 7)
    assert lengths.tolist() == KEYS
    sequences, places = ht.get_batch_indices_positions(indptr_of(new, device), lengths, len(tokens) + 2)
    assert places.tolist() == [*tokens, 0, 0] and sequences.tolist()[-3:] == [6, -1, -1]
    padded = [torch.cat((x, torch.zeros_like(x[:2]))) for x in (k, v)]
    ht.append_paged_kv_cache(*padded, sequences, places, cache, indices, first, last, layout)
    flat = cache if layout == "NHD" else cache.transpose(2, 3)
    stored = [flat[indices[int(first[b]) + t // 7], :, t % 7] for b, t in zip(sequences.tolist(), tokens)]
    assert same_bits(torch.stack(stored)[:, 0], k) and same_bits(torch.stack(stored)[:, 1], v)
    assert int(cache.isfinite().sum()) == k.numel() + v.numel()


def test_an_append_outside_of_its_pages_writes_nothing():
    case = Case()
    before, k = case.pages.clone(), make((2, KV_HEADS, DIM))
    for sequence, place in ((1, 16), (0, 0), (6, 112), (7, 0), (2, -1)):
        with pytest.raises(ValueError, match=rf"positions\[1\]={place} of sequence {sequence}: must be in a page"):
            ht.append_paged_kv_cache(
                k, k, int32([5, sequence]), int32([3, place]), case.pages, case.table[1], case.table[0], case.table[2]
            )
    assert torch.equal(before.isnan(), case.pages.isnan())
    assert torch.equal(before.nan_to_num(0), case.pages.nan_to_num(0))


def test_merges_are_those_of_all_keys():
    q, k, v = make((5, HEADS, DIM), seed=1), make((30, KV_HEADS, DIM), seed=2), make((30, KV_HEADS, DIM), seed=3)
    want = reference(q, k, v, torch.ones(5, 30, dtype=torch.bool))
    parts = [
        ht.single_prefill_with_kv_cache(q, k[rows], v[rows], return_lse=True)
        for rows in (slice(0, 11), slice(11, 12), slice(12, 30))
    ]
    states = [torch.stack(x, 1) for x in zip(*parts)]
    merged = ht.merge_states(*states)
    pair = ht.merge_state(*ht.merge_state(*parts[0], *parts[1]), *parts[2])
    for out, lse in (merged, pair):
        assert out.shape == q.shape and lse.shape == q.shape[:2] and lse.is_contiguous()
        is_close(out, want[0])
        is_close(lse, want[1])
    with pytest.raises(ValueError, match=r"must be \[seq_len, num_states, num_heads, head_dim\]"):
        ht.merge_states(states[0], states[1][0])
    with pytest.raises(ValueError, match="must be those of state a"):
        ht.merge_state(*parts[0], parts[1][0][:2], parts[1][1])


def test_compiled_runs_have_the_same_bits():
    case = Case()
    q = make((len(KEYS), HEADS, DIM), seed=1)
    wrapper = ht.BatchDecodeWithPagedKVCacheWrapper()
    wrapper.plan(*case.table, *case.sizes)

    def call(q, pages):
        return wrapper.run(q, pages, return_lse=True)

    got = torch.compile(call, backend="eager", fullgraph=True)(q, case.pages)
    assert all(map(same_bits, got, call(q, case.pages)))


# ---- errors ----

T = torch.zeros(1)


def decode(plan=(), run=(), table=None, **wrapper):
    case = Case()
    w = ht.BatchDecodeWithPagedKVCacheWrapper(**wrapper)
    w.plan(*(table or case.table), *case.sizes, **dict(plan))
    given = {"q": make((len(KEYS), HEADS, DIM)), "paged_kv_cache": case.pages, **dict(run)}
    return w.run(**given)


def prefill(plan=(), **wrapper):
    case = Case()
    w = ht.BatchPrefillWithPagedKVCacheWrapper(**wrapper)
    w.plan(indptr_of(QUERIES), *case.table, *case.sizes, **dict(plan))
    return w.run(make((sum(QUERIES), HEADS, DIM)), case.pages)


def ragged(plan=(), run=(), **wrapper):
    w = ht.BatchPrefillWithRaggedKVCacheWrapper(**wrapper)
    w.plan(int32([0, 5]), int32([0, 9]), HEADS, KV_HEADS, DIM, **dict(plan))
    return w.run(make((5, HEADS, DIM)), *(make((9, KV_HEADS, DIM)),) * 2, **dict(run))


def single(**options):
    return ht.single_prefill_with_kv_cache(make((5, HEADS, DIM)), *(make((9, KV_HEADS, DIM)),) * 2, **options)


def test_arguments_that_only_tune_flashinfer_change_nothing():
    splits = {"fixed_split_size": 4, "disable_split_kv": True, "rope_scale": 2.0, "rope_theta": 1e5}
    off = {"seq_lens": None, "block_tables": None, "window_right": 0, "jit_args": None}
    tuned = {"use_tensor_cores": True, "backend": "fa3", "float_workspace_buffer": torch.empty(8), "jit_args": None}
    assert same_bits(decode({**splits, **off}, {"enable_pdl": True, "kv_cache_sf": None}, **tuned), decode())
    assert same_bits(prefill({**splits, "use_fp16_qk_reduction": True, "custom_mask": None}), prefill())
    names = {"max_token_per_sequence": 40, "max_sequence_kv": 100, "token_pos_in_items_len": 0}
    assert same_bits(prefill(names, backend="fa2"), prefill())
    assert same_bits(single(use_fp16_qk_reduction=True, rope_scale=2.0, backend="fa2"), single())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: decode({"pos_encoding_mode": "ROPE_LLAMA"}), "pos_encoding_mode='ROPE_LLAMA': must be 'NONE'; rotate"),
        (lambda: prefill({"pos_encoding_mode": "ALIBI"}), r"pos_encoding_mode='ALIBI'.*attention\(alibi_slopes=\)"),
        (lambda: decode({"window_right": -1}), "window_right=-1: windows are open"),
        (lambda: decode({"seq_lens": int32([1, 2])}), r"seq_lens=Tensor \(2,\): the page table says it; leave it out"),
        (lambda: decode({"block_tables": T}), "block_tables=.*leave it out"),
        (lambda: decode({"o_data_type": "float16", "q_data_type": "float32"}), "o_data_type=torch.float16: must be q_"),
        (lambda: decode({"o_data_type": torch.float16}), "o_data_type=torch.float16: must be that of q, torch.float32"),
        (lambda: decode(jit_args=[1]), r"jit_args=\[1\]: kernels are not customised here; leave it out"),
        (lambda: decode(run={"kv_cache_sf": T}), "kv_cache_sf=.*there are no NVFP4 keys"),
        (lambda: decode(run={"skip_softmax_threshold_scale_factor": 0.5}), "skip_softmax.*=0.5: attention is exact"),
        (lambda: decode(run={"k_scale": T}), "k_scale is a tensor, .*pass a float"),
        (lambda: prefill({"custom_mask": T}), r"custom_mask=.*call single_prefill_with_kv_cache\(custom_mask=\)"),
        (lambda: prefill({"packed_custom_mask": T}), "packed_custom_mask=.*masks are not packed here"),
        (lambda: prefill({"prefix_len_ptr": T}), "prefix_len_ptr=.*pass a sequence for each item"),
        (lambda: prefill({"token_pos_in_items_len": 3}), "token_pos_in_items_len=3: items"),
        (lambda: prefill(custom_mask_buf=T), "custom_mask_buf=.*a batch has no masks here"),
        (lambda: prefill(jit_kwargs={"a": 1}), "jit_kwargs="),
        (lambda: ragged({"v_indptr": T}), "v_indptr=.*v has the offsets of k"),
        (lambda: ragged(run={"o_scale": 2.0}), "o_scale=2.0: out is not quantised"),
        (lambda: single(scale_q=T), r"scale_q=.*pass q \* scale_q"),
        (lambda: single(packed_custom_mask=T), "packed_custom_mask="),
        (lambda: single(o_dtype=torch.float16), "o_dtype=torch.float16: must be that of q"),
        (lambda: single(pos_encoding_mode="ALIBI"), "pos_encoding_mode='ALIBI': must be 'NONE'"),
    ],
)
def test_what_is_not_supported_is_refused(call, text):
    with pytest.raises(NotImplementedError, match=text):
        call()


TABLE = Case().table


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: decode(kv_layout="NHDX"), "kv_layout='NHDX': must be 'NHD'"),
        (lambda: ragged(kv_layout="HND"), "kv_layout='HND': must be 'NHD'"),
        (lambda: decode(use_cuda_graph=True), "paged_kv_indptr_buffer: not given, but use_cuda_graph is"),
        (lambda: decode(table=(TABLE[0][1:], *TABLE[1:])), r"indptr.shape=\(7,\): must have shape \(8,\)"),
        (lambda: decode(table=(TABLE[0] + 1, *TABLE[1:])), "indptr: must begin with 0, not descend"),
        (lambda: decode(table=(TABLE[0], TABLE[1][:3], TABLE[2])), "indptr: must .* end with 3, .* of indices"),
        (lambda: decode(table=(*TABLE[:2], TABLE[2] + 16)), r"last_page_len\[1\]=17: must be 1 to page_size=16"),
        (lambda: decode(table=(TABLE[0].float(), *TABLE[1:])), "indptr.dtype=torch.float32: must be int32 or int64"),
        (lambda: decode({"q_len_per_req": 0}), "q_len_per_req=0: must be 1 or more"),
        (lambda: decode({"q_len_per_req": 2}), r"q: .*\(7, 4, 24\).* must be .*\(14, 4, 24\)"),
        (lambda: decode({"q_data_type": "half_float"}), "q_data_type='half_float': must be a torch.dtype or its name"),
        (lambda: decode({"q_data_type": "float16"}), "q: torch.float32 .*must be .*torch.float16, on cpu as planned"),
        (lambda: decode({"kv_data_type": "float16"}), r"paged_kv_cache\[0\]: torch.float32 .*must be .*torch.float16"),
        (lambda: decode({"max_seqlen_k": 99}), r"seqused_k\[6\]=100: must be 0 to 99"),
        (lambda: decode(run={"q": make((7, 4, 23))}), r"q: .*\(7, 4, 23\).* must be .*\(7, 4, 24\)"),
        (lambda: decode(run={"paged_kv_cache": make((3, 16, 2, 24))}), r"paged_kv_cache.shape=.* be \[num_pages, 2"),
        (lambda: decode(run={"paged_kv_cache": make((3, 2, 8, 2, 24))}), r"paged_kv_cache\[0\]: .*\(any, 16, 2, 24\)"),
        (lambda: decode(run={"out": make((7, 4, 8))}), r"out: .*\(7, 4, 8\) on cpu: must be .*\(7, 4, 24\)"),
        (lambda: decode(run={"out": make((7, 4, 24)).double()}), "out: torch.float64.*torch.float32"),
        (lambda: decode(run={"lse": make((7, 4))}), "lse: given without return_lse"),
        (lambda: decode(run={"lse": make((4, 7)), "return_lse": True}), r"lse: .*must be \[rows.*, \(7, 4\)"),
        (lambda: prefill({"max_seqlen_q": 3, "max_token_per_sequence": 3}), "pass one of them"),
        (lambda: prefill({"max_seqlen_q": 3}), "max_seqlen_q=3"),
        (lambda: single(custom_mask=torch.ones(5, 8, dtype=torch.bool)), r"custom_mask: .*must be .*\(5, 9\)"),
        (lambda: single(window_left=1.5), "window_left"),
    ],
)
def test_wrong_arguments_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_other_mistakes_are_refused():
    wrapper = ht.BatchDecodeWithPagedKVCacheWrapper()
    with pytest.raises(RuntimeError, match=r"run\(\) before plan\(\)"):
        wrapper.run(T, T)
    case = Case()
    with pytest.raises(ValueError, match="num_qo_heads=4: must be a multiple of num_kv_heads=3"):
        wrapper.plan(*case.table, 4, 3, DIM, 16)
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'bogus'"):
        decode({"bogus": 1})
    with pytest.raises(TypeError, match="paged_kv_cache is a int"):
        decode(run={"paged_kv_cache": 3})
    with pytest.raises(TypeError, match="out is a builtins.int"):
        decode(run={"out": 3})
    wrapper.plan(*case.table, *case.sizes)
    with pytest.raises(NotImplementedError, match=r"run\(\): 1 more arguments: kernels are not customised"):
        wrapper.run(make((len(KEYS), HEADS, DIM)), case.pages, T)
