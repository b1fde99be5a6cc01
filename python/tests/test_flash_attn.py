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
    q, k, v = make((19, 4, 16), device=device), make((30, 2, 16), device=device), make((30, 2, 16), device=device, seed=2)
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
