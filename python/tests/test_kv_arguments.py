"""flash_attn_with_kvcache with the arguments of FlashAttention-3, and with cache_leftpad, beside plain calls."""

import pytest
from torch_data import DEVICES, array, make, torch

import headrace.torch as ht

BATCH, CAPACITY, DIM = 3, 24, 16
FP8 = torch.float8_e4m3fn


def int32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def cache(page_size, dtype, device):
    """k and v of a cache, its block_table, and a function that reads `length` keys of a sequence."""
    k, v = (make((2 * BATCH, CAPACITY, 2, DIM), torch.float32, device, seed=i).to(dtype) for i in (1, 2))
    if not page_size:
        return k, v, None, lambda x, b, length: x[b, :length]
    pages = CAPACITY // page_size
    order = torch.randperm(2 * BATCH * pages, generator=torch.Generator().manual_seed(1))
    table = order.to(torch.int32).view(2 * BATCH, pages).to(device)
    k, v = (x.reshape(-1, page_size, 2, DIM) for x in (k, v))
    return k, v, table, lambda x, b, length: x[table[b].long()].flatten(0, 1)[:length]


def reference(q, k, v, causal, window, chunk):
    """One sequence [seqlen, heads, dim] in float64."""
    q, k, v = q.double(), *(x.double().repeat_interleave(2, 1) for x in (k, v))
    at = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    keys = torch.arange(len(k), device=q.device)[None]
    mask = keys <= at if causal else torch.ones(len(q), len(k), dtype=torch.bool, device=q.device)
    if window[0] >= 0:
        mask = mask & (keys >= at - window[0]) & (keys <= at + window[1])
    if chunk:
        mask = mask & (keys >= at - at % chunk) & (keys < at - at % chunk + chunk)
    scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    lse = torch.logsumexp(scores.masked_fill(~mask, float("-inf")), -1)
    probs = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1).nan_to_num(0)
    return torch.einsum("hqk,khd->qhd", probs, v), lse


def rotated(x, first, cos, sin):
    c, s = (table[first : first + len(x), None].double() for table in (cos, sin))
    a, b = x.double().chunk(2, -1)
    return torch.cat((a * c - b * s, a * s + b * c), -1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8], ids=["f32", "bf16", "fp8"])
@pytest.mark.parametrize("chunk", [0, 5])
@pytest.mark.parametrize("has_leftpad", [False, True])
@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize("chosen", [[4, 0, 3], None])
@pytest.mark.parametrize("page_size", [0, 1, 4])
@pytest.mark.parametrize(("causal", "window", "appends"), [(True, (-1, -1), True), (False, (4, 1), False)])
def test_arguments_together(causal, window, appends, page_size, chosen, is_ragged, has_leftpad, chunk, dtype, device):
    k_cache, v_cache, table, read = cache(page_size, dtype, device)
    if chosen is None:
        k_cache, v_cache = (x if page_size else x[:BATCH] for x in (k_cache, v_cache))
        table = table if table is None else table[:BATCH]
    rows, new = ([3, 1, 4], [2, 3, 1]) if is_ragged else ([3] * 3, [3] * 3)
    make_of = lambda counts, heads, seed: [  # noqa: E731
        make((n, heads, DIM), torch.float32, device, seed + i).to(dtype) for i, n in enumerate(counts)
    ]
    q, k, v = make_of(rows, 4, 10), make_of(new, 2, 20), make_of(new, 2, 30)
    join = torch.cat if is_ragged else torch.stack
    used, skipped = [11, 0, 20], [2, 0, 9]
    angles = make((64, DIM // 2), device=device)
    cos, sin = (f(angles).to(torch.float32 if dtype == FP8 else dtype) for f in (torch.cos, torch.sin))
    arguments = {
        "cache_seqlens": int32(used, device), "page_table": table, "causal": causal, "window_size": window,
        "attention_chunk": chunk, "return_softmax_lse": True,
    }  # fmt: skip
    if chosen is not None:
        arguments["cache_batch_idx"] = int32(chosen, device)
    if has_leftpad:
        arguments["cache_leftpad"] = int32(skipped, device)
    if is_ragged:
        arguments |= {"cu_seqlens_q": int32([0, 3, 4, 8], device), "max_seqlen_q": 4}
    if appends:
        arguments |= {"k": join(k), "v": join(v), "rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": False}
        arguments |= {"cu_seqlens_k_new": int32([0, 2, 5, 6], device)} if is_ragged else {}
    out, lse = ht.flash_attn_with_kvcache(join(q), k_cache, v_cache, **arguments)
    assert out.dtype == (torch.bfloat16 if dtype == FP8 else dtype)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 0.03, FP8: 0.25}[dtype]
    outs = out.split(rows) if is_ragged else out
    lses = lse.split(rows, 1) if is_ragged else lse
    for b, entry in enumerate(chosen or range(BATCH)):
        length = used[b] + new[b] * appends
        keys, values = read(k_cache, entry, length), read(v_cache, entry, length)
        query = q[b].double()
        if appends:
            query = rotated(query, used[b], cos, sin)
            want = rotated(k[b], used[b], cos, sin)
            error = abs(array(keys[used[b] :].double() - want)).max()
            assert error <= {torch.float32: 1e-5, torch.bfloat16: 0.03, FP8: 0.13}[dtype] * abs(array(want)).max()
            assert (values[used[b] :].double() == v[b].double()).all()
        first = skipped[b] if has_leftpad else 0
        want, want_lse = reference(query, keys[first:], values[first:], causal, window, chunk)
        assert abs(array(outs[b] - want)).max() < tolerance
        finite = want_lse.isfinite()
        assert (lses[b].isfinite() == finite).all()
        assert abs(array(lses[b] - want_lse)[array(finite).astype(bool)]).max(initial=0) < tolerance


def test_leftpad_of_caches_with_gaps():
    """Slices of longer caches are read in place; others are copied."""
    whole = make((4, 2, 12, DIM), seed=3)
    q = make((2, 1, 4, DIM))
    slices = make((2, 30, 2, DIM), seed=3)[:, 2:20]
    for k in (slices, whole[::2].transpose(1, 2), make((2, 1, 2, DIM)).expand(2, 9, 2, DIM)):
        out = ht.flash_attn_with_kvcache(q, k, k, cache_seqlens=int32([9, 7]), cache_leftpad=int32([4, 0]))
        for b, (first, end) in enumerate(((4, 9), (0, 7))):
            want, _ = reference(q[b], k[b, first:end], k[b, first:end], False, (-1, -1), 0)
            assert abs(array(out[b] - want)).max() < 2e-5


def test_metadata_and_positions_without_tables_change_nothing():
    q, k = make((2, 1, 4, DIM)), make((2, 9, 2, DIM))
    lengths = int32([9, 4])
    metadata = ht.get_scheduler_metadata(2, 1, 9, 4, 2, DIM, lengths, torch.float32, num_splits=2)
    calls = [
        ht.flash_attn_with_kvcache(q, k, k, cache_seqlens=lengths, scheduler_metadata=m, rotary_seqlens=r)
        for m, r in ((None, None), (metadata, lengths))
    ]
    assert torch.equal(*calls)


def test_without_an_order_queries_rotate_at_one_place():
    """The tables need no positions past the first for them: five queries after two keys, one new key."""
    cache = [make((1, 16, 2, 8), torch.float32, "cpu", seed) for seed in (1, 2)]
    q, k, v = make((1, 5, 2, 8)), make((1, 1, 2, 8), seed=3), make((1, 1, 2, 8), seed=4)
    angles = make((16, 4))
    outs = [
        ht.flash_attn_with_kvcache(
            q, *(x.clone() for x in cache), k, v, torch.cos(angles)[:n], torch.sin(angles)[:n], int32([2])
        )
        for n in (16, 3)
    ]
    torch.testing.assert_close(outs[1], outs[0], rtol=0, atol=0)
    with pytest.raises(ValueError, match="must be at least 7, the position after the last of sequence 0"):
        ht.flash_attn_with_kvcache(
            q, *cache, k, v, torch.cos(angles)[:3], torch.sin(angles)[:3], int32([2]), causal=True
        )
