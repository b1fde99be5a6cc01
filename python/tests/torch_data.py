"""Devices and data of the PyTorch tests."""

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")],
    ),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def make(shape, dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def qkv(device="cpu", dtype=torch.float32, batch=2, sq=17, sk=29, heads=4, kv_heads=2, dim=16, dim_v=None):
    return (
        make((batch, sq, heads, dim), dtype, device, 1),
        make((batch, sk, kv_heads, dim), dtype, device, 2),
        make((batch, sk, kv_heads, dim_v or dim), dtype, device, 3),
    )


def array(tensor):
    """As a NumPy array, in float64 if it is floating point."""
    tensor = tensor.detach().cpu()
    return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()


def expected(q, k, v, **options):
    options = {n: array(x) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    return oracle.attention(array(q), array(k), array(v), **options)


def check(out, reference, like):
    assert out.dtype == like.dtype and out.device == like.device
    oracle.check_out(array(out), reference, name_of(like.dtype))


def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(array(a), array(b))
