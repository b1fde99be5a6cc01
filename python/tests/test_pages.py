"""Keys in pages and caches of keys, on arrays and PyTorch tensors, beside PyTorch's attention of the gathered keys."""

import numpy as np
import oracle
import pytest
from torch_data import DEVICES, DTYPES, array, expected, make, same_bits, torch

import headrace
import headrace.torch as ht

F = torch.nn.functional
KEYS = [0, 1, 15, 16, 17, 64, 100]


def int32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def paged(k, v, keys, page_size, seed=3):
    """Shuffled pages of k and v [batch, seqlen, heads, dim]: (k pages, v pages, block_table). The rest is NaN."""
    counts = [-(-n // page_size) for n in keys]
    order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.full((len(keys), max(counts) + 1), 2147480000, dtype=torch.int32)
    pages = [torch.full((len(order), page_size, *x.shape[2:]), float("nan"), dtype=x.dtype) for x in (k, v)]
    for b, n in enumerate(keys):
        for j in range(counts[b]):
            table[b, j] = page = order.pop()
            for of_pages, x in zip(pages, (k, v), strict=True):
                part = x[b, j * page_size : min((j + 1) * page_size, n)]
                of_pages[page, : len(part)] = part
    return *(x.to(k.device) for x in pages), table.to(k.device)


def tensors(dtype=torch.float32, device="cpu", sq=3, dim=24, seed=0):
    batch = len(KEYS)
    return (
        make((batch, sq, 4, dim), dtype, device, seed + 1),
        make((batch, max(KEYS), 2, dim), dtype, device, seed + 2),
        make((batch, max(KEYS), 2, dim), dtype, device, seed + 3),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 3, 16, 256])
def test_pages_have_the_bits_of_contiguous_keys(page_size, dtype, device):
    q, k, v = tensors(dtype, device)
    k_pages, v_pages, table = paged(k, v, KEYS, page_size)
    used = int32(KEYS, device)
    whole, lse = ht.attention(q, k, v, causal=True, seqused_k=used, return_lse=True)
    options = {"causal": True, "block_table": table, "seqused_k": used}
    out, paged_lse = ht.attention(q, k_pages, v_pages, return_lse=True, **options)
    if device == "cpu":
        assert same_bits(out, whole) and same_bits(paged_lse, lse)
    for b, n in enumerate(KEYS):
        one, *_ = expected(q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n], causal=True)
        oracle.check_out(array(out[b : b + 1]), one, str(dtype).removeprefix("torch."))
    heads_first = [x.transpose(1, 2) for x in (q, k_pages, v_pages)]
    assert same_bits(ht.attention(*heads_first, layout="bhsd", **options).transpose(1, 2), out)
    # Ragged queries.
    cu_q = int32(range(0, 3 * len(KEYS) + 1, 3), device)
    flat = ht.attention(q.flatten(0, 1), k_pages, v_pages, cu_seqlens_q=cu_q, max_seqlen_q=3, **options)
    assert same_bits(flat, out.flatten(0, 1))
    cu_k = F.pad(used.cumsum(0), (1, 0)).to(torch.int32)
    varlen = ht.flash_attn_varlen_func(
        q.flatten(0, 1), k_pages, v_pages, cu_q, cu_k, 3, max(KEYS), causal=True, block_table=table
    )
    assert same_bits(varlen, flat)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("page_size", [0, 16])
def test_a_cache_of_codes_has_a_descale_for_each_sequence_and_head(page_size, dtype):
    q, k, v = tensors()
    scale = torch.rand(2, len(KEYS), 2, generator=torch.Generator().manual_seed(1)) / 20 + 0.05
    codes = [(x / s[:, None, :, None]).clamp(-100, 100).to(dtype) for x, s in zip((k, v), scale, strict=True)]
    k, v = (x.float() * s[:, None, :, None] for x, s in zip(codes, scale, strict=True))
    names = {"k_descale": scale[0], "v_descale": scale[1]}
    used = int32(KEYS)
    cache, table = codes, None
    if page_size:
        bits = [x.view(torch.uint8) for x in codes]
        as_floats = paged(bits[0].float().nan_to_num(), bits[1].float().nan_to_num(), KEYS, page_size)
        cache = [x.nan_to_num().to(torch.uint8).view(dtype) for x in as_floats[:2]]
        table = as_floats[2]
    out = ht.flash_attn_with_kvcache(q, *cache, cache_seqlens=used, causal=True, block_table=table, **names)
    want = ht.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, causal=True)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-5)
    # Codes are appended as they are.
    new = [x[:, :1].clone() for x in codes]
    dense = [x.clone() for x in codes]
    ht.flash_attn_with_kvcache(q, *dense, *new, cache_seqlens=int32([0] * len(KEYS)), causal=True, **names)
    assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(dense, codes, strict=True))
    with pytest.raises(NotImplementedError, match="q_descale"):
        ht.flash_attn_with_kvcache(q, *codes, cache_seqlens=used, q_descale=scale[0])
    with pytest.raises(ValueError, match=r"k_descale.shape=\(2,\)"):
        ht.flash_attn_with_kvcache(q, *codes, cache_seqlens=used, k_descale=scale[0, 0], v_descale=scale[1])


def test_arrays_take_pages():
    q, k, v = tensors()
    k_pages, v_pages, table = paged(k, v, KEYS, 16)
    want = ht.attention(q, k_pages, v_pages, causal=True, block_table=table, seqused_k=int32(KEYS))
    arrays = [x.numpy() for x in (q, k_pages, v_pages)]
    options = {"causal": True, "block_table": table.numpy(), "seqused_k": np.array(KEYS, np.int32)}
    out, lse = headrace.attention(*arrays, return_lse=True, **options)
    assert np.array_equal(out, want.numpy()) and lse.shape == (len(KEYS), 4, 3)
    assert f"{len(k_pages)} pages of 16 keys" in headrace.explain(*arrays, **options)
    whole = [x.numpy() for x in (q, k, v)]
    used = headrace.attention(*whole, causal=True, seqused_k=options["seqused_k"])
    assert np.array_equal(used, out)


def test_compiled_calls_take_pages():
    q, k, v = tensors()
    k_pages, v_pages, table = paged(k, v, KEYS, 16)

    def call(q, k, v, table, used):
        return ht.attention(q, k, v, causal=True, block_table=table, seqused_k=used)

    arguments = (q, k_pages, v_pages, table, int32(KEYS))
    assert same_bits(torch.compile(call, backend="eager", fullgraph=True)(*arguments), call(*arguments))


def seen_by(sq, n, causal, window):
    """[sq, n] bool, as flash-attn's masks: aligned bottom-right."""
    left, right = window
    distance = torch.arange(n)[None, :] - (torch.arange(sq)[:, None] + n - sq)
    seen = torch.ones(sq, n, dtype=torch.bool)
    if causal:
        seen &= distance <= 0
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def of_torch(q, k, v, seen):
    """PyTorch's attention in float64 of [seqlen, heads, dim]."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1)


def turned(x, angles, interleaved):
    """x [seqlen, heads, dim] as complex numbers times exp(i angles [seqlen, pairs])."""
    half = angles.shape[1]
    head = x[..., : 2 * half].double()
    pairs = (head[..., ::2], head[..., 1::2]) if interleaved else (head[..., :half], head[..., half:])
    z = torch.complex(*pairs) * torch.polar(torch.ones_like(angles), angles)[:, None]
    parts = torch.view_as_real(z).flatten(-2) if interleaved else torch.cat((z.real, z.imag), -1)
    return torch.cat((parts.to(x.dtype), x[..., 2 * half :]), -1)


CASES = [
    dict(sq=1),
    dict(sq=1, new=1, causal=True, page_size=16),
    dict(sq=3, new=3, causal=True, page_size=1),
    dict(sq=3, new=5, causal=True, page_size=7, rotary=8, interleaved=True),
    dict(sq=2, new=2, page_size=16, rotary=24, interleaved=False),
    dict(sq=3, new=3, window=(9, 1), rotary=12, interleaved=False),
    dict(sq=2, new=2, causal=True, page_size=5, rotary=24, starts=[3, 100, 0, 7]),
    dict(sq=1, new=2, page_size=5, rotary=6, starts=[3, 100, 0, 7], dtype=torch.bfloat16),
    dict(sq=3, new=3, causal=True, page_size=5, rotary=10, interleaved=False, dtype=torch.float64),
    dict(sq=3, new=3, causal=True, rotary=24, has_gaps=True),
    dict(sq=4, new=1, causal=True, use_index=True),
    dict(sq=20, new=20, causal=True, page_size=256, dtype=torch.bfloat16),
    dict(sq=1, new=0, causal=True, page_size=3, dtype=torch.float16),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kv_cache_is_appended_to_and_read(case, device):
    sq, new, page_size = case["sq"], case.get("new"), case.get("page_size")
    causal, window, rotary = case.get("causal", False), case.get("window", (-1, -1)), case.get("rotary", 0)
    interleaved, dtype = case.get("interleaved", True), case.get("dtype", torch.float32)
    before = [21, 30, 64, 99]
    room = 130
    q = make((4, sq, 4, 24), dtype, device)
    k_cache, v_cache = (make((4, room, 2, 24), dtype, device, i) for i in (1, 2))
    if case.get("has_gaps"):  # the last axis of the cache has stride 2
        k_cache, v_cache = (torch.stack((x, x), -1)[..., 0] for x in (k_cache, v_cache))
    k, v = (None, None) if new is None else (make((4, new, 2, 24), dtype, device, i) for i in (7, 8))
    whole_k, whole_v = k_cache.clone(), v_cache.clone()
    options = {}
    if page_size:
        k_cache, v_cache, options["block_table"] = paged(k_cache, v_cache, [room] * 4, page_size)
    if case.get("use_index"):
        options["cache_batch_idx"] = int32([2, 0, 3, 1], device)
        k_cache, v_cache = (x[[1, 3, 0, 2]].clone() for x in (k_cache, v_cache))  # entry 2 is sequence 0's
    angles = torch.rand((room, rotary // 2), generator=torch.Generator().manual_seed(1)).double() * 6
    if rotary:
        options.update(rotary_cos=angles.cos().to(device), rotary_sin=angles.sin().to(device))
    starts = case.get("starts", before)
    if "starts" in case:
        options["rotary_seqlens"] = int32(starts, device)
    out, lse = ht.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=int32(before, device), causal=causal, window_size=window,
        rotary_interleaved=interleaved, return_softmax_lse=True, **options,
    )  # fmt: skip
    assert out.dtype == dtype and lse.shape == (4, 4, sq)
    assert lse.dtype == (dtype if dtype == torch.float64 else torch.float32)
    unit = oracle.UNIT[str(dtype).removeprefix("torch.")]
    for b, n in enumerate(before):
        q_b, end = q[b].cpu(), n + (new or 0)
        keys, values = whole_k[b, :end].cpu(), whole_v[b, :end].cpu()
        if new:
            first = starts[b]
            keys[n:], values[n:] = turned(k[b].cpu(), angles[first : first + new], interleaved), v[b].cpu()
            steps = torch.arange(sq) if causal or window != (-1, -1) else torch.zeros(sq, dtype=torch.long)
            q_b = turned(q_b, angles[first + steps], interleaved)
        want = of_torch(q_b, keys, values, seen_by(sq, end, causal, window))
        assert (out[b].cpu().double() - want).abs().max() < 8 * unit * want.abs().max() + 4e-6
        if page_size:
            row = options["block_table"][b].long()
            stored = [x[row[: -(-end // page_size)]].flatten(0, 1)[:end].cpu() for x in (k_cache, v_cache)]
        else:
            entry = b if "cache_batch_idx" not in options else int(options["cache_batch_idx"][b])
            stored = [x[entry, :end].cpu() for x in (k_cache, v_cache)]
        assert same_bits(stored[1], values)
        assert (stored[0].double() - keys.double()).abs().max() <= 4 * unit * keys.double().abs().max()
        assert same_bits(stored[0][:n], keys[:n])


def append_arguments():
    q, k_cache, v_cache = make((2, 1, 4, 8)), make((2, 10, 2, 8), seed=1), make((2, 10, 2, 8), seed=2)
    return {
        "q": q, "k_cache": k_cache, "v_cache": v_cache, "k": make((2, 2, 2, 8), seed=3),
        "v": make((2, 2, 2, 8), seed=4), "cache_seqlens": int32([3, 8]), "causal": True,
    }  # fmt: skip


def in_pages(arguments):
    pages = {n: arguments[n].reshape(4, 5, 2, 8) for n in ("k_cache", "v_cache")}
    return {**arguments, **pages, "block_table": int32([[2, 1], [0, 3]])}


BAD_PAGES = [  # changes of in_pages()
    ({"cache_seqlens": int32([3, 9])}, r"cache_seqlens\[1\]=9"),
    ({"cache_seqlens": int32([4, 8]), "block_table": int32([[2, 4], [0, 3]])}, r"block_table\[0, 1\]=4: must be 0"),
    ({"block_table": int32([[2, 1], [-1, 3]])}, r"block_table\[1, 0\]=-1"),
    ({"block_table": int32([[2, 1]])}, r"block_table.shape=\(1, 2\)"),
    ({"cache_batch_idx": int32([0, 2])}, r"block_table\[1, 0\]=-1"),
    ({"page_table": int32([[2, 1], [0, 3]])}, "page_table with block_table: two names"),
]
BAD = [  # changes of append_arguments()
    ({"cache_seqlens": int32([3, 9])}, r"cache_seqlens\[1\]=9: with 2 new keys must be 0 to 10"),
    ({"cache_seqlens": int32([-1, 8])}, r"cache_seqlens\[0\]=-1"),
    ({"cache_seqlens": int32([3, 8, 1])}, r"cache_seqlens.shape=\(3,\): must be \[batch\]"),
    ({"cache_seqlens": None}, "cache_seqlens: not given, but k is"),
    ({"cache_batch_idx": int32([0, 2])}, r"block_table\[1, 0\]=2: must be 0 to 1"),
    ({"cache_seqlens": torch.tensor([3.0, 8.0])}, "cache_seqlens.dtype=torch.float32: must be int32 or int64"),
    ({"cache_seqlens": torch.tensor([3, 8 + 2**32])}, r"cache_seqlens\[1\]=2147483647: with 2 new keys"),
    ({"cache_batch_idx": torch.tensor([0.0, 1.0])}, "cache_batch_idx.dtype=torch.float32: must be int32 or int64"),
    ({"cache_batch_idx": torch.tensor([0, 2**32])}, r"block_table\[1, 0\]=2147483647: must be 0 to 1"),
    ({"cache_leftpad": int32([0, 11])}, r"cache_leftpad\[1\]=11: must be 0 to 10, the keys in use"),
    ({"cache_leftpad": int32([0])}, r"cache_leftpad.shape=\(1,\): must be \[batch\]"),
    ({"v": None}, "k and v: one of them is not given"),
    ({"k": make((2, 2, 2, 8), torch.float16)}, r"k: torch.float16 \(2, 2, 2, 8\): must be"),
    ({"k": make((2, 1, 2, 8))}, r"v.shape\[1\]=2: must be that of k, 1"),
    ({"rotary_cos": torch.ones(9, 4), "rotary_sin": torch.ones(9, 4)}, "must be at least 10"),
    ({"rotary_cos": torch.ones(20, 5), "rotary_sin": torch.ones(20, 5)}, "rotary_dim at most"),
    ({"rotary_cos": torch.ones(20, 4), "k": None, "v": None}, "rotary_cos without k"),
    (
        {"rotary_cos": torch.ones(9, 4), "rotary_sin": torch.ones(9, 4), "rotary_seqlens": int32([0, 8])},
        "must be at least 10, the position after the last of sequence 1, which starts at 8",
    ),
    (
        {"rotary_cos": torch.ones(20, 4), "rotary_sin": torch.ones(20, 4), "rotary_seqlens": int32([-1, 8])},
        "sequence 0, which starts at -1",
    ),
    (
        {"rotary_cos": torch.ones(20, 4), "rotary_sin": torch.ones(20, 4), "rotary_seqlens": torch.ones(2)},
        "rotary_seqlens.dtype=torch.float32: must be int32 or int64",
    ),
    ({"q": make((1, 1, 4, 8))}, r"k_cache.shape\[0\]=2: must be batch=1"),
    ({"q": make((2, 1, 3, 8))}, "num_heads"),
    ({"v_cache": make((2, 11, 2, 8))}, r"v.shape\[1\]=11"),
]
FAILURES = [(append_arguments, *bad) for bad in BAD]
FAILURES += [(lambda: in_pages(append_arguments()), *bad) for bad in BAD_PAGES]


@pytest.mark.parametrize(("arguments_of", "change", "text"), FAILURES, ids=[text[:30] for *_, text in FAILURES])
def test_failed_appends_write_nothing(arguments_of, change, text):
    arguments = {**arguments_of(), **change}
    caches = [arguments[n].clone() for n in ("k_cache", "v_cache")]
    with pytest.raises((ValueError, NotImplementedError), match=text):
        ht.flash_attn_with_kvcache(**arguments)
    assert all(same_bits(arguments[n], x) for n, x in zip(("k_cache", "v_cache"), caches, strict=True))


@pytest.mark.parametrize("name", ["cache_seqlens", "cache_batch_idx", "rotary_seqlens"])
def test_lengths_may_be_int64(name):
    arguments = append_arguments()
    arguments |= {"rotary_cos": torch.ones(20, 4), "rotary_sin": torch.ones(20, 4)}
    arguments |= {"cache_batch_idx": int32([1, 0]), "rotary_seqlens": int32([2, 5])}
    others = {**arguments, **{n: arguments[n].clone() for n in ("k_cache", "v_cache")}}
    others[name] = others[name].long()
    assert same_bits(*(ht.flash_attn_with_kvcache(**x) for x in (arguments, others)))
    assert same_bits(arguments["k_cache"], others["k_cache"])


def test_append_is_a_well_behaved_operator():
    k_pages, v_pages, x = make((3, 4, 2, 8)), make((3, 4, 2, 8)), make((3, 2, 8), seed=1)
    slots, positions = torch.tensor([5, -1, 0]), int32([2, 0, 9])
    tables = make((10, 3), seed=2), make((10, 3), seed=3)
    arguments = (x, x, k_pages, v_pages, slots, x, torch.empty_like(x), positions, *tables, False)
    torch.library.opcheck(torch.ops.headrace.kv_append, arguments)
    torch.library.opcheck(torch.ops.headrace.kv_append, (x, x, k_pages, v_pages, slots, *(None,) * 5, True))


def kv_cache_arguments(dtype=torch.bfloat16, device="cuda"):
    return {
        "q": make((2, 1, 4, 64), dtype, device), "k_cache": make((8, 16, 2, 64), dtype, device, 1),
        "v_cache": make((8, 16, 2, 64), dtype, device, 2), "k": make((2, 1, 2, 64), dtype, device, 3),
        "v": make((2, 1, 2, 64), dtype, device, 4), "cache_seqlens": int32([3, 30], device),
        "block_table": int32([[2, 5], [0, 7]], device), "causal": True,
        "rotary_cos": make((64, 32), dtype, device, 5), "rotary_sin": make((64, 32), dtype, device, 6),
    }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_appends_replay_in_a_graph():
    arguments, eager = kv_cache_arguments(), kv_cache_arguments()
    caches = [arguments[n].clone() for n in ("k_cache", "v_cache")]
    ht.flash_attn_with_kvcache(**arguments)  # plans are made before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ht.flash_attn_with_kvcache(**arguments)
    for x, before in zip((arguments["k_cache"], arguments["v_cache"]), caches, strict=True):
        x.copy_(before)
    arguments["cache_seqlens"] += 1  # a graph serves changing lengths
    eager["cache_seqlens"] += 1
    graph.replay()
    assert same_bits(out, ht.flash_attn_with_kvcache(**eager))
    assert all(same_bits(arguments[n], eager[n]) for n in ("k_cache", "v_cache"))
    headrace.check()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(
    ("change", "text"),
    [({"cache_seqlens": [3, 32]}, "slot_mapping|seqused_k"), ({"block_table": [[2, 5], [0, -3]]}, "slot_mapping"),
     ({"block_table": [[2, 5], [0, 8]]}, "slot_mapping|block_table")],
)  # fmt: skip
def test_a_gpu_reports_keys_without_room(change, text):
    arguments = kv_cache_arguments()
    arguments.update({n: int32(x, "cuda") for n, x in change.items()})
    caches = {n: arguments[n].clone() for n in ("k_cache", "v_cache")}
    ht.flash_attn_with_kvcache(**arguments)
    with pytest.raises(ValueError, match=text):
        headrace.check()
    for n, before in caches.items():
        changed = (arguments[n] != before).flatten(2).any(-1).nonzero().tolist()
        assert changed == [[2, 3]], n  # the key of the first sequence alone


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("max_pages", [None, 9])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_csr_page_tables(dtype, max_pages, device):
    k, v, q = make((7, 100, 2, 16), seed=1), make((7, 100, 2, 16), seed=2), make((7, 1, 4, 16))
    k_pages, v_pages, table = paged(k, v, KEYS, 16)
    counts = [-(-n // 16) for n in KEYS]
    indptr = torch.tensor([sum(counts[:i]) for i in range(8)], dtype=dtype, device=device)
    indices = torch.cat([row[:n] for row, n in zip(table, counts, strict=True)]).to(dtype).to(device)
    last = torch.tensor([n - 16 * max(c - 1, 0) for n, c in zip(KEYS, counts, strict=True)], dtype=dtype, device=device)
    got, seqused_k = ht.block_table_from_csr(indptr, indices, last, 16, max_pages)
    assert got.dtype == seqused_k.dtype == torch.int32
    assert got.shape == (7, max_pages or max(counts)) and seqused_k.tolist() == KEYS
    pages = [x.to(device) for x in (k_pages, v_pages)]
    out, want = (
        ht.flash_attn_with_kvcache(q.to(device), *pages, cache_seqlens=seqused_k, block_table=t.to(device))
        for t in (got, table)
    )
    assert same_bits(out, want)
    assert all(bool((row[n:] == 0).all()) for row, n in zip(got.cpu(), counts, strict=True))


def test_csr_without_pages():
    empty = torch.zeros(0, dtype=torch.int32)
    table, lengths = ht.block_table_from_csr(int32([0, 0, 0]), empty, int32([5, 5]), 4, 3)
    assert table.tolist() == [[0, 0, 0]] * 2 and lengths.tolist() == [0, 0]
    table, lengths = ht.block_table_from_csr(int32([0]), empty, empty, 4)
    assert table.shape == (0, 0) and lengths.shape == (0,)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kv_indptr": torch.tensor([0.0, 2, 3])}, "kv_indptr.dtype=torch.float32: must be int32 or int64"),
        ({"kv_indptr": int32([0, 3])}, r"kv_indptr.shape\[0\]=2: must be 3"),
        ({"kv_indptr": int32([0, 3, 2])}, "kv_indptr: must begin with 0, not descend, and end with 3"),
        ({"kv_indptr": int32([0, 4, 3])}, "kv_indptr: must begin with 0, not descend"),
        ({"kv_indptr": int32([1, 2, 3])}, "kv_indptr: must begin with 0"),
        ({"kv_indices": int32([[1, 2, 3]])}, r"kv_indices: \(1, 3\) on cpu: must have 1 axis"),
        ({"kv_last_page_len": int32([0, 4])}, r"kv_last_page_len\[0\]=0: must be 1 to page_size=4"),
        ({"kv_last_page_len": int32([1, 5])}, r"kv_last_page_len\[1\]=5"),
        ({"max_pages": 1}, "max_pages=1: must be at least 2, the pages of sequence 0"),
    ],
)
def test_bad_csr_is_refused(change, text):
    good = {"kv_indptr": int32([0, 2, 3]), "kv_indices": int32([5, 1, 2]), "kv_last_page_len": int32([4, 1])}
    ht.block_table_from_csr(**good, page_size=4, max_pages=2)
    with pytest.raises(ValueError, match=text):
        ht.block_table_from_csr(**{**good, "page_size": 4, **change})


def test_what_has_no_meaning_with_pages_is_refused():
    q, k, v = tensors()
    k_pages, v_pages, table = paged(k, v, KEYS, 16)
    options = {"block_table": table, "seqused_k": int32(KEYS)}
    arrays = [x.numpy() for x in (q, k_pages, v_pages)]
    with pytest.raises(ValueError, match="return_probs with block_table"):
        ht.attention(q, k_pages, v_pages, return_probs=True, **options)
    with pytest.raises(ValueError, match="return_probs with block_table"):
        headrace.attention(*arrays, return_probs=True, **{n: x.numpy() for n, x in options.items()})
    with pytest.raises(ValueError, match="seqused_k: not given, but block_table is"):
        ht.attention(q, k_pages, v_pages, block_table=table)
    out = ht.attention(q.requires_grad_(), k_pages, v_pages, **options)
    with pytest.raises((ValueError, NotImplementedError), match="block_table|seqused_k"):
        out.sum().backward()
