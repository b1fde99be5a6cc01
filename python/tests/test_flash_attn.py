"""The functions under flash-attn's names, beside other ways to say the same: packed and ragged batches."""

import inspect

import pytest
from torch_data import DEVICES, array, make, same_bits, torch

import headrace.torch as ht

CU_Q, CU_K = [0, 5, 5, 19], [0, 9, 12, 30]


def int32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def gradients(out, *inputs):
    return torch.autograd.grad(out, inputs, make(out.shape, out.dtype, out.device, 9))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("with_gradient", [False, True])
def test_ragged_packed_functions_equal_the_plain_one(with_gradient, device):
    cu_q, cu_k = int32(CU_Q, device), int32(CU_K, device)
    options = {"causal": True, "window_size": (4, -1), "softcap": 5.0, "deterministic": True}
    q, kv, qkv = (make(s, device=device) for s in ((19, 4, 16), (30, 2, 2, 16), (19, 3, 4, 16)))
    q, kv, qkv = (x.requires_grad_(with_gradient) for x in (q, kv, qkv))
    packed = ht.flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, 14, 18, **options)
    plain = ht.flash_attn_varlen_func(q, *kv.unbind(1), cu_q, cu_k, 14, 18, **options)
    assert same_bits(packed, plain)
    all_packed = ht.flash_attn_varlen_qkvpacked_func(qkv, cu_q, 14, **options)
    all_plain = ht.flash_attn_varlen_func(*qkv.unbind(1), cu_q, cu_q, 14, 14, **options)
    assert same_bits(all_packed, all_plain)
    if with_gradient:
        for a, b in zip(gradients(packed, q, kv), gradients(plain, q, kv), strict=True):
            assert same_bits(a, b)
        assert same_bits(*gradients(all_packed, qkv), *gradients(all_plain, qkv))


def test_ragged_packed_functions_have_flash_attns_arguments():
    rest = list(inspect.signature(ht.flash_attn_qkvpacked_func).parameters)[1:]
    leading = {
        ht.flash_attn_varlen_kvpacked_func: "q kv cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
        ht.flash_attn_varlen_qkvpacked_func: "qkv cu_seqlens max_seqlen",
    }
    for function, names in leading.items():
        assert list(inspect.signature(function).parameters) == names.split() + rest
    with pytest.raises(ValueError, match=r"qkv.shape=\(2, 4, 8\): must be \[total, 3"):
        ht.flash_attn_varlen_qkvpacked_func(make((2, 4, 8)), int32([0, 2]), 2)
    with pytest.raises(ValueError, match=r"kv.shape=\(2, 3, 1, 8\): must be \[total_k, 2"):
        ht.flash_attn_varlen_kvpacked_func(make((2, 1, 8)), make((2, 3, 1, 8)), int32([0, 2]), int32([0, 2]), 2, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_dropped_probabilities_of_a_ragged_batch_give_its_result(device):
    q, k, v = (make(s, device=device, seed=i) for i, s in enumerate([(19, 4, 16), (30, 2, 16), (30, 2, 16)]))
    torch.manual_seed(3)
    out, _, probs = ht.flash_attn_varlen_func(
        q, k, v, int32(CU_Q, device), int32(CU_K, device), 14, 18, 0.3, causal=True, return_attn_probs=True,
        alibi_slopes=torch.full((3, 4), 0.25, device=device),
    )  # fmt: skip
    assert probs.shape == (3, 4, 14, 18)
    assert 0.2 < (probs < 0).sum() / (probs != 0).sum() < 0.4
    kept = probs.clamp(min=0) / 0.7
    for b in range(3):
        rows, keys = slice(*CU_Q[b : b + 2]), slice(*CU_K[b : b + 2])
        values = v[keys].repeat_interleave(2, 1)
        one = torch.einsum("hqk,khd->qhd", kept[b, :, : rows.stop - rows.start, : len(values)], values)
        assert abs(array(one - out[rows])).max() < 1e-4 if rows.stop > rows.start else one.numel() == 0


# ---- FlashAttention-3's arguments ----


def reference(q, k, v, mask, scale=None):
    """[seqlen, heads, dim] of one sequence in float64; 0 for a row without keys."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), *(x.double().repeat_interleave(groups, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    probs = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1).nan_to_num(0)
    return torch.einsum("hqk,khd->qhd", probs, v)


def seen(sq, sk, causal, chunk, device):
    """Keys that each query sees: of its own chunk."""
    at, keys = torch.arange(sq, device=device)[:, None] + sk - sq, torch.arange(sk, device=device)[None]
    mask = keys <= at if causal else torch.ones(sq, sk, dtype=torch.bool, device=device)
    first = at - at % chunk if chunk else torch.zeros_like(at)
    return mask & (keys >= first) & (keys < first + (chunk or sk))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("sq", "sk", "chunk"), [(7, 12, 3), (7, 12, 5), (9, 4, 3), (7, 12, 1), (8, 8, 100)])
def test_queries_see_the_keys_of_their_chunk(sq, sk, chunk, causal, device):
    q, k, v = (make((2, n, h, 16), device=device, seed=h).requires_grad_() for n, h in ((sq, 4), (sk, 2), (sk, 1)))
    v = v.expand(-1, -1, 2, -1)
    out, lse, _ = ht.flash_attn_func(q, k, v, causal=causal, attention_chunk=chunk, return_attn_probs=True)
    want = torch.stack([reference(q[b], k[b], v[b], seen(sq, sk, causal, chunk, device)) for b in range(2)])
    assert lse.shape == (2, 4, sq)
    assert abs(array(out - want)).max() < 1e-5
    for a, b in zip(gradients(out, q, k), gradients(want.float(), q, k), strict=True):
        assert abs(array(a - b)).max() < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [0, 4])
def test_rows_and_keys_out_of_use_count_for_nothing(chunk, device):
    q, k, v = (make((n, h, 16), device=device, seed=h).requires_grad_() for n, h in ((19, 4), (30, 2), (30, 1)))
    v = v.expand(-1, 2, -1)
    used = [3, 0, 14], [9, 1, 11]
    out = ht.flash_attn_varlen_func(
        q, k, v, int32(CU_Q, device), int32(CU_K, device), 14, 18, causal=True, attention_chunk=chunk,
        seqused_q=int32(used[0], device), seqused_k=int32(used[1], device),
    )  # fmt: skip
    want = torch.zeros(q.shape, device=device, dtype=torch.float64)
    for i, n, j, m in zip(CU_Q, used[0], CU_K, used[1]):
        mask = seen(n, m, True, chunk, device)
        want[i : i + n] = reference(q[i : i + n], k[j : j + m], v[j : j + m], mask)
    assert abs(array(out - want)).max() < 1e-5
    for a, b in zip(gradients(out, q, k), gradients(want.float(), q, k), strict=True):
        assert abs(array(a - b)).max() < 1e-5


def test_chunks_and_rows_in_use_of_keys_in_pages():
    q, k, v = make((12, 4, 16)), make((6, 3, 2, 16), seed=1), make((6, 3, 2, 16), seed=2)
    table, lengths, used_q = int32([[4, 1, 0], [2, 5, 3]]), [8, 5], [4, 6]
    for chunk in (0, 2):
        out = ht.flash_attn_varlen_func(
            q, k, v, int32([0, 5, 12]), None, 7, 9, causal=True, attention_chunk=chunk, block_table=table,
            seqused_q=int32(used_q), seqused_k=int32(lengths),
        )  # fmt: skip
        for b, first in enumerate((0, 5)):
            keys, values = (x[table[b].long()].flatten(0, 1)[: lengths[b]] for x in (k, v))
            mask = seen(used_q[b], lengths[b], True, chunk, "cpu")
            want = reference(q[first : first + used_q[b]], keys, values, mask)
            assert abs(array(out[first : first + used_q[b]] - want)).max() < 1e-5


def test_qv_adds_products_with_the_values():
    shapes = (1, 5, 4, 8), (1, 9, 2, 8), (1, 9, 2, 24), (1, 5, 4, 24)
    q, k, v, qv = (make(s, seed=i) for i, s in enumerate(shapes))
    out = ht.flash_attn_func(q, k, v, qv=qv)
    mask = torch.ones(5, 9, dtype=torch.bool)
    want = reference(torch.cat((q, qv), -1)[0], torch.cat((k, v), -1)[0], v[0], mask, 32**-0.5)
    assert abs(array(out[0] - want)).max() < 1e-5
    offsets = int32([0, 5]), int32([0, 9])
    ragged = ht.flash_attn_varlen_func(q[0], k[0], v[0], *offsets, 5, 9, qv=qv[0])
    assert same_bits(ragged, out[0])


@pytest.mark.parametrize("is_ragged", [False, True])
def test_fp8_operands_count_times_their_descales(is_ragged):
    codes = [make((2, n, h, 32), seed=n).to(torch.float8_e4m3fn) for n, h in ((6, 4), (10, 2), (11, 2))]
    codes[2] = codes[2][:, :10]
    scales = [make((2, 2), seed=i).abs() + 0.5 for i in range(3)]
    names = dict(zip(("q_descale", "k_descale", "v_descale"), scales))
    if is_ragged:
        flat = [x.flatten(0, 1) for x in codes]
        out = ht.flash_attn_varlen_func(*flat, int32([0, 6, 12]), int32([0, 10, 20]), 6, 10, **names)
        out = out.unflatten(0, (2, 6))
    else:
        out = ht.flash_attn_func(*codes, **names)
    assert out.dtype == torch.bfloat16
    per_head = [scales[0].repeat_interleave(2, 1), *scales[1:]]
    for b in range(2):
        whole = [x[b].double() * s[b][:, None] for x, s in zip(codes, per_head)]
        want = reference(*whole, torch.ones(6, 10, dtype=torch.bool))
        assert abs(array(out[b] - want)).max() < 0.03 * abs(array(want)).max()
