"""Reference attention in float64, one query head at a time, and the rules of docs/numerics.md.

Nothing of the library is used here.
"""

import math

import numpy as np

try:
    import ml_dtypes

    BF16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BF16 = None

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}
# R2: squared error over squared size.
MAX_NMSE = {"float32": 1e-12, "float16": 2e-7, "bfloat16": 1e-5, "float64": 1e-28}
# f32 lse: roundings of a dot product of up to 128 terms and of a logarithm, in units of the largest score.
LSE_TOLERANCE = 2e-5


def visible(sq, sk, causal, window):
    """[sq, sk] bool: the keys visible under causal mask and window."""
    shift = 0 if causal == "top-left" else sk - sq
    diagonal = np.arange(sq)[:, None] + shift
    keys = np.arange(sk)[None, :]
    seen = np.ones((sq, sk), bool)
    if causal:
        seen &= keys <= diagonal
    left, right = window
    if left >= 0:
        seen &= keys >= diagonal - left
    if right >= 0:
        seen &= keys <= diagonal + right
    return seen


def _tree(words, sq, sk):
    """[sq, sk] bool of u32 words [sq, words]: the last sq keys are the queries' own, the earlier are all visible."""
    bits = (words[:, :, None] >> np.arange(32, dtype=np.uint32)) & 1
    own = bits.reshape(sq, -1)[:, :sq].astype(bool)
    return np.concatenate([np.ones((sq, sk - sq), bool), own], axis=1)


def _scores(q, k, scale, softcap, slope, bias, causal):
    """[sq, sk] of one head; q [sq, d], k [sk, d]."""
    sq, sk = len(q), len(k)
    s = scale * (q @ k.T)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if slope is not None:
        shift = 0 if causal == "top-left" else sk - sq
        s = s - slope * np.abs(np.arange(sq)[:, None] + shift - np.arange(sk)[None, :])
    return s if bias is None else s + bias


def _softmax(s, seen, sink):
    """(probabilities, lse) of the visible scores [sq, sk]."""
    s = np.where(seen, s, -np.inf)
    top = s.max(axis=1, initial=-np.inf)
    empty = top == -np.inf
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(empty, 0, top)
    p = np.exp(s - top[:, None])
    total = p.sum(axis=1) + (0 if sink is None else np.exp(sink - top))
    with np.errstate(divide="ignore"):
        lse = np.where(empty, -np.inf, top + np.log(total))
    return np.where(empty[:, None], 0, p / np.where(empty, 1, total)[:, None]), lse


def attention(
    q, k, v, *, softmax_scale=None, causal=False, window=(-1, -1), softcap=0.0, alibi_slopes=None, bias=None,
    mask=None, tree_mask=None, sinks=None, round_to=None,
):  # fmt: skip
    """(out, lse, probs) for [batch, seqlen, heads, dim]; with round_to the low-precision computation `pt`."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, sq, heads, dim = q.shape
    sk, kv_heads = k.shape[1:3]
    scale = dim**-0.5 if softmax_scale is None else softmax_scale
    causal = "bottom-right" if causal is True else causal
    rounded = (lambda x: x) if round_to is None else (lambda x: x.astype(round_to).astype(np.float64))
    full = (batch, heads, sq, sk)
    bias = None if bias is None else np.broadcast_to(np.asarray(bias, np.float64), full)
    mask = None if mask is None else np.broadcast_to(mask, full)
    slopes = None if alibi_slopes is None else np.broadcast_to(np.asarray(alibi_slopes, np.float64), (batch, heads))
    out = np.zeros((batch, sq, heads, v.shape[-1]))
    lse = np.zeros((batch, heads, sq))
    probs = np.zeros(full)
    base = visible(sq, sk, causal, window)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // kv_heads)
            slope = None if slopes is None else slopes[b, h]
            s = _scores(q[b, :, h], k[b, :, g], scale, softcap, slope, None if bias is None else bias[b, h], causal)
            seen = base if mask is None else base & mask[b, h]
            if tree_mask is not None:
                seen = seen & _tree(tree_mask[b], sq, sk)
            p, lse[b, h] = _softmax(rounded(s), seen, None if sinks is None else float(sinks[h]))
            probs[b, h] = p
            out[b, :, h] = rounded(p) @ v[b, :, g]
    return rounded(out), lse, probs


def gradients(q, k, v, dout, dlse=None, keep=1.0, **options):
    """(dq, dk, dv, dbias, dsinks) of the same call; the last two are None without bias and sinks. `keep`: dropout
    factors of the probabilities, 0 or 1 / (1 - p), [batch, heads, sq, sk]."""
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q, k, v, dout))
    _, lse, probs = attention(q, k, v, **options)
    group = q.shape[2] // k.shape[2]
    scale = options.get("softmax_scale") or q.shape[-1] ** -0.5
    keys, values = (x.repeat(group, axis=2) for x in (k, v))
    dprobs = np.einsum("bihd,bjhd->bhij", dout, values) * keep
    change = np.einsum("bhij,bhij->bhi", probs, dprobs) - (0 if dlse is None else np.asarray(dlse, np.float64))
    change = np.where(np.isneginf(lse), 0, change)
    dscores = probs * (dprobs - change[..., None])
    softcap = options.get("softcap", 0.0)
    dproducts = dscores * scale
    if softcap:
        products = scale * np.einsum("bihd,bjhd->bhij", q, keys)
        dproducts = dproducts * (1 - np.tanh(products / softcap) ** 2)
    grouped = (*k.shape[:2], k.shape[2], group)
    dq = np.einsum("bhij,bjhd->bihd", dproducts, keys)
    dk = np.einsum("bhij,bihd->bjhd", dproducts, q).reshape(*grouped, -1).sum(3)
    dv = np.einsum("bhij,bihd->bjhd", probs * keep, dout).reshape(*grouped, -1).sum(3)
    bias, sinks = options.get("bias"), options.get("sinks")
    if bias is not None:
        axes = tuple(i for i, size in enumerate(bias.shape) if size == 1)
        bias = dscores.sum(axes, keepdims=True)
    if sinks is not None:
        with np.errstate(over="ignore"):
            share = np.where(np.isneginf(lse), 0, np.exp(np.asarray(sinks, np.float64)[None, :, None] - lse))
        sinks = -(share * change).sum((0, 2))
    return dq, dk, dv, bias, sinks


def ragged(q, k, v, cu_q, cu_k, **options):
    """(out [total_q, heads, dim], lse [heads, total_q]) of concatenated sequences."""
    outs, lses = [], []
    for i in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        out, lse, _ = attention(q[None, rows], k[None, keys], v[None, keys], **options)
        outs.append(out[0])
        lses.append(lse[0])
    return np.concatenate(outs), np.concatenate(lses, axis=1)


def _ulp(value, dtype):
    """One ulp of numbers as large as `value`."""
    return 2.0 ** math.floor(math.log2(value)) * 2 * UNIT[dtype] if value > 0 else 0.0


def bound_of_out(q, k, v, dtype, **options):
    """R3: error bound of each element of out, which holds even if its sum cancels."""
    eps = UNIT["float64" if dtype == "float64" else "float32"]
    exact, _, _ = attention(q, k, v, **options)
    magnitude, _, _ = attention(q, k, np.abs(v), **options)  # sum p |v|
    largest = np.abs(np.float64(options.get("bias", 0))).max(initial=0) + options.get("softcap", 0)
    largest += np.abs(options.get("alibi_slopes", np.zeros(1))).max() * (q.shape[1] + k.shape[1])
    scale = options.get("softmax_scale", q.shape[-1] ** -0.5)
    norms = (np.sqrt(np.square(x.astype(np.float64)).sum(-1)).max(initial=0) for x in (q, k))
    largest += scale * math.prod(norms)  # sum |q| |k| is no larger
    share = (2 * (q.shape[-1] + 3) + 8) * eps * (1 + largest) + k.shape[1] * eps
    of_probs = 0 if dtype in ("float32", "float64") else UNIT[dtype]
    half_of_smallest = 2.0**-25 if dtype == "float16" else 0  # other dtypes have denormals far below the tests' values
    return (share + of_probs) * magnitude + np.maximum(UNIT[dtype] * np.abs(exact), half_of_smallest)


def check_out(out, expected, dtype, low_precision=None, bound=None):
    """R2, or R3 if `bound` is given; for 16-bit dtypes R1 if `pt` is given: no worse than it by more than a unit of
    the last place."""
    out = np.asarray(out, np.float64)
    assert out.shape == expected.shape
    assert np.isfinite(out).all()
    error = np.abs(out - expected)
    size = np.square(expected).sum()
    if bound is not None:
        assert (error <= bound).all()
    else:
        assert np.square(error).sum() <= MAX_NMSE[dtype] * size or (size == 0 and not error.any())
    if low_precision is not None and dtype in ("float16", "bfloat16"):
        most = np.abs(low_precision - expected).max(initial=0)
        assert error.max(initial=0) <= most + _ulp(np.abs(expected).max(initial=0), dtype)


def check_lse(lse, expected):
    lse = np.asarray(lse, np.float64)
    assert lse.shape == expected.shape
    assert np.array_equal(np.isneginf(lse), np.isneginf(expected))
    seen = ~np.isneginf(expected)
    largest = max(np.abs(expected[seen]).max(initial=0), 1.0)
    assert np.abs(lse[seen] - expected[seen]).max(initial=0) <= LSE_TOLERANCE * largest
