"""headrace.sparq_attention and sparq_append against NumPy in float64, and against attention over all keys."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace

FLOATS = ["float32", "float16"] + (["bfloat16"] if oracle.BF16 is not None else [])
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def dtype_of(name):
    return oracle.BF16 if name == "bfloat16" else np.dtype(name)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def estimates(q, k, num_components):
    """Step 1 of one group in float64: q [group, head_dim], k [seqlen_k, head_dim] -> [group, seqlen_k]."""
    magnitudes = np.abs(q).sum(0, dtype=np.float32)
    chosen = np.sort(np.argsort(-magnitudes, kind="stable")[:num_components])
    q, k = q.astype(np.float64), k.astype(np.float64)
    share = np.abs(q[:, chosen]).sum(-1, keepdims=True) / np.abs(q).sum(-1, keepdims=True)
    return softmax(q[:, chosen] @ k[:, chosen].T / np.sqrt(q.shape[-1] * share))


def data(seed, dtype, batch, seqlen, num_kv_heads, group, dim):
    rng = np.random.default_rng(seed)
    q = (rng.standard_normal((batch, num_kv_heads * group, dim)) ** 3).astype(dtype_of(dtype))
    q[q == 0] = 1  # as f16: a row of zeros alone has no share of its largest components
    k, v = (rng.standard_normal((batch, seqlen, num_kv_heads, dim)).astype(dtype_of(dtype)) for _ in range(2))
    return q, k, v, np.ascontiguousarray(k.transpose(0, 2, 3, 1))


def in_pages(x, page_size):
    """[batch, seqlen, ..] -> [batch * pages, page_size, ..], page p of sequence b at b * pages + p."""
    return np.ascontiguousarray(x.reshape(-1, page_size, *x.shape[2:]))


@given(
    batch=st.integers(1, 3),
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    dim=st.integers(1, 70),
    num_pages=st.integers(1, 30),
    num_keys=st.integers(1, 100),
    local_window=st.integers(0, 20),
    has_mean=st.booleans(),
    is_paged=st.booleans(),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**32),
)
def test_equals_float64(
    batch, num_kv_heads, group, dim, num_pages, num_keys, local_window, has_mean, is_paged, dtype, seed
):
    page_size = 7
    seqlen = num_pages * page_size
    q, k, v, components = data(seed, dtype, batch, seqlen, num_kv_heads, group, dim)
    lengths = np.random.default_rng(seed).integers(1, seqlen + 1, batch).astype(np.int32)
    v_sum = np.stack([v[b, : lengths[b]].astype(np.float32).sum(0) for b in range(batch)])
    memory = {"k": k, "v": v, "k_components": components}
    if is_paged:
        pages = in_pages(k, page_size)
        memory = {"k": pages, "v": in_pages(v, page_size), "block_table": np.arange(batch * num_pages, dtype=np.int32)}
        memory["block_table"] = memory["block_table"].reshape(batch, num_pages)
        memory["k_components"] = np.ascontiguousarray(pages.transpose(0, 2, 3, 1))
    r = 1 + dim // 2
    out, indices, alpha = headrace.sparq_attention(
        q, **memory, num_components=r, num_keys=num_keys, local_window=local_window, seqused_k=lengths,
        v_sum=v_sum if has_mean else None, return_indices=True,
    )  # fmt: skip
    assert out.dtype == q.dtype and indices.dtype == np.int32 and alpha.dtype == np.float32
    for b, length in enumerate(lengths):
        for head in range(num_kv_heads):
            queries = q[b, head * group : (head + 1) * group]
            keys = indices[b, head]
            num = min(num_keys, length)
            assert (keys[num:] == -1).all() and (np.diff(keys[:num]) > 0).all()
            keys = keys[:num]
            local = min(local_window, num)
            assert set(range(length - local, length)) <= set(keys)
            p = estimates(queries, k[b, :length, head], r)
            sums = p.sum(0)[: length - local]
            others = np.setdiff1d(np.arange(length - local), keys)
            chosen = np.setdiff1d(keys, np.arange(length - local, length))
            if len(others) and len(chosen):
                assert sums[chosen].min() >= sums[others].max() * (1 - 1e-3)
            share = p[:, keys].sum(-1)
            rows = slice(head * group, (head + 1) * group)
            np.testing.assert_allclose(alpha[b, rows], share, rtol=0, atol=1e-4)
            scores = queries.astype(np.float64) @ k[b, keys, head].astype(np.float64).T / np.sqrt(dim)
            want = softmax(scores) @ v[b, keys, head].astype(np.float64)
            if has_mean:
                want = share[:, None] * want + (1 - share[:, None]) * v_sum[b, head].astype(np.float64) / length
            bound = 3e-4 * np.abs(v[b].astype(np.float64)).max()
            bound = bound + (np.abs(want) + bound) * ROUNDING[dtype]
            assert (np.abs(out[b, rows].astype(np.float64) - want) <= bound).all()


def test_every_key_is_attention():
    q, k, v, components = data(1, "float32", 2, 100, 2, 2, 32)
    out = headrace.sparq_attention(q, k, v, components, num_components=4, num_keys=100)
    dense = headrace.attention(q[:, None], k, v)[:, 0]
    np.testing.assert_allclose(out, dense, rtol=0, atol=2.0**-17)


def test_append_keeps_components_and_sums_up_to_date():
    page_size = 8
    _, k, v, _ = data(2, "float16", 2, 40, 3, 1, 16)
    pages, values = in_pages(k, page_size), in_pages(v, page_size)
    components = np.zeros((10, 3, 16, page_size), np.float16)
    v_sum = np.zeros((2, 3, 16), np.float32)
    prompt = np.concatenate([np.arange(30), 40 + np.arange(20)])  # slots of 30 and 20 tokens
    cu_seqlens = np.array([0, 30, 50], np.int32)
    headrace.sparq_append(pages, components, prompt, v=values, v_sum=v_sum, cu_seqlens=cu_seqlens)
    headrace.sparq_append(pages, components, np.array([30, 60]), v=values, v_sum=v_sum)
    np.testing.assert_array_equal(components[:3], pages[:3].transpose(0, 2, 3, 1))
    np.testing.assert_allclose(v_sum[0], v[0, :31].astype(np.float32).sum(0), rtol=0, atol=1e-5)
    np.testing.assert_allclose(v_sum[1], v[1, :21].astype(np.float32).sum(0), rtol=0, atol=1e-5)


def test_pytorch_tensors_need_out():
    torch = pytest.importorskip("torch")
    arrays = data(3, "float32", 1, 50, 2, 2, 16)
    want = headrace.sparq_attention(*arrays, num_components=8, num_keys=20)
    tensors = [torch.from_numpy(x) for x in arrays]
    out = torch.empty(tensors[0].shape)
    headrace.sparq_attention(*tensors, num_components=8, num_keys=20, out=out)
    np.testing.assert_array_equal(out.numpy(), want)
    with pytest.raises(ValueError, match="out: must be given for PyTorch tensors"):
        headrace.sparq_attention(*tensors, num_components=8, num_keys=20)


def test_errors_come_from_the_library():
    arrays = data(4, "float32", 1, 50, 2, 2, 16)
    with pytest.raises(ValueError, match=r"num_components=17: must be 1 to head_dim=16"):
        headrace.sparq_attention(*arrays, num_components=17, num_keys=20)
    with pytest.raises(ValueError, match=r"q\.rank=4: must be 3"):
        headrace.sparq_attention(arrays[0][:, None], *arrays[1:], num_components=4, num_keys=20)
    with pytest.raises(ValueError, match=r"v: not given, but v_sum is"):
        headrace.sparq_append(arrays[1], arrays[3], np.array([0]), v_sum=np.zeros((1, 2, 16), np.float32))


def test_codes_are_their_scales_times_integers():
    rng = np.random.default_rng(4)
    q = rng.standard_normal((2, 6, 32)).astype(np.float32)
    k, v = (rng.integers(-127, 128, (2, 90, 3, 32)).astype(np.int8) for _ in range(2))
    k_scale, v_scale = (rng.uniform(0.01, 0.02, (2, 90, 3)).astype(np.float32) for _ in range(2))
    floats = [x.astype(np.float32) * scale[..., None] for x, scale in ((k, k_scale), (v, v_scale))]
    components = np.zeros((2, 3, 32, 90), np.float32)
    v_sum = np.zeros((2, 3, 32), np.float32)
    slots = np.arange(180, dtype=np.int64)
    # The keys as one page of another order.
    rows = np.ascontiguousarray(floats[0].reshape(1, 180, 3, 32)[:, ::-1])
    headrace.sparq_append(
        rows, components, slots, v=v, v_sum=v_sum, cu_seqlens=np.array([0, 90, 180], np.int32),
        k_slots=slots[::-1], v_scale=v_scale,
    )  # fmt: skip
    np.testing.assert_array_equal(components, floats[0].transpose(0, 2, 3, 1))
    np.testing.assert_allclose(v_sum, floats[1].sum(1), atol=1e-3)
    sizes = {"num_components": 8, "num_keys": 20, "local_window": 4, "v_sum": v_sum, "return_indices": True}
    codes = headrace.sparq_attention(q, k, v, components, k_scale=k_scale, v_scale=v_scale, **sizes)
    plain = headrace.sparq_attention(q, *floats, components, **sizes)
    np.testing.assert_array_equal(codes[1], plain[1])
    np.testing.assert_allclose(codes[0], plain[0], atol=1e-5)
    with pytest.raises(ValueError, match="k_scale: not given, but k has codes"):
        headrace.sparq_attention(q, k, v, components, num_components=8, num_keys=20)
