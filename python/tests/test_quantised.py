"""Codes of keys and values: kv_append, KvCache, attention, LLM and Engine."""

import pathlib

import numpy as np
import oracle
import pytest

import headrace
from headrace import _arguments

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "tiny"
HEADS, KV_HEADS, DIM = 4, 2, 16
needs_fp8 = pytest.mark.skipif(oracle.BF16 is None, reason="ml_dtypes has fp8")
TYPES = ["int8", pytest.param("fp8", marks=needs_fp8), "int4", "kivi4", "kivi2"]


def group_of(k_type):
    return 32 if k_type in ("kivi4", "kivi2") else 16


def new_cache(k_type, v_type, **changes):
    options = {"num_layers": 2, "num_kv_heads": KV_HEADS, "head_dim": DIM, "num_pages": 12, "num_recent_pages": 12}
    return headrace.KvCache(**{**options, "dtype": "f32", "k_type": k_type, "v_type": v_type, **changes})


def decoded(codes, scales):
    """The values of codes [.., heads, dim] with scales [.., heads]; kivi4 and kivi2: with words [.., heads, words]."""
    if codes.dtype.names is not None:
        bits = 4 if codes.dtype.names == ("u4x2",) else 2
        bytes_ = codes.view(np.uint8)
        codes = np.stack([bytes_ >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -1)
        codes = codes.reshape(*bytes_.shape[:-1], -1).astype(np.float32)
        pairs = scales.view(np.float16).reshape(*scales.shape, 2).astype(np.float32)
        pairs = np.repeat(pairs, codes.shape[-1] // pairs.shape[-2], -2)
        with np.errstate(invalid="ignore"):  # of slots that were not written
            return codes * pairs[..., 0] + pairs[..., 1]
    if codes.dtype == np.uint8:
        codes = np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:-1], -1).astype(np.float32) - 8
    return codes.astype(np.float32) * scales[..., None]


def step(cache, sequence, q, k, v, **options):
    """Appends the tokens to layer 1; the outputs of their queries."""
    num_new = len(k)
    cache.reserve(sequence, num_new)
    batch = cache.fill_batch([sequence], num_new)
    of_codes = cache.quantised(1)._asdict()
    pages = {"k_pages": cache.k_pages(1), "v_pages": cache.v_pages(1)}
    out_q = np.empty_like(q)
    headrace.kv_append(
        k=k, v=v, **pages, slot_mapping=batch.slot_mapping, q=q, q_out=out_q, recent_slots=batch.recent_slots,
        **of_codes, **options,
    )  # fmt: skip
    out = headrace.attention(
        out_q[None], *pages.values(), causal=True, block_table=batch.block_table, seqused_k=batch.seqused_k,
        recent_table=batch.recent_table, strict_rows=True, **of_codes,
    )  # fmt: skip
    cache.commit(sequence, [1] * num_new)
    return out[0], batch


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("v_type", TYPES)
@pytest.mark.parametrize("k_type", [None, *TYPES])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_attention_reads_what_an_append_wrote(rng, k_type, v_type, layout, hadamard):
    n, group = 41, group_of(k_type)
    q, k, v = (rng.standard_normal((n, heads, DIM), np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    with new_cache(k_type, v_type, layout=layout, page_size=group) as cache:
        whole, batch = step(cache, cache.add([]).sequence, q, k, v, hadamard=hadamard)
        # What each query saw: its own group as given, earlier groups as codes.
        scales, slots = cache.quantised(1), batch.slot_mapping
        assert (scales.k_scale is None) == (k_type is None) and scales.k_recent.shape == (12, group, KV_HEADS, DIM)
        matrix = np.ones((1, 1), np.float32)
        while hadamard and len(matrix) < DIM:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        turned = [x @ matrix / np.float32(DIM**0.5) if hadamard else x for x in (q, k)]
        stored = []
        keys, values = (cache.k_pages(1), scales.k_scale, turned[1]), (cache.v_pages(1), scales.v_scale, v)
        for pages, scale, given in (keys, values):
            at = slots // group, slots % group
            is_by_group = scale is not None and scale.shape[1] < group  # keys of kivi4 and kivi2
            scale_at = (at[0], at[1] // 32) if is_by_group else at
            values = pages[at] if scale is None else decoded(pages[at], scale[scale_at])
            stored.append(values)
            # An int4 code is 1/8 of the largest element, half of it is the rounding; 7 is the largest code. A 2-bit one
            # is at most 2/3 of it.
            num_stored = n // group * group if is_by_group else n
            error = np.abs(values - given)[:num_stored].max()
            assert error <= np.abs(given).max() / (3 if pages.dtype.names == ("u2x4",) else 8) + 1e-6
        for i in range(n):
            first = i // group * group
            seen = [
                np.concatenate((codes[:first], given[first : i + 1]))[None]
                for codes, given in zip(stored, (turned[1], v))
            ]
            want = headrace.attention(turned[0][None, i : i + 1], *seen)
            np.testing.assert_allclose(whole[i], want[0, 0], rtol=0, atol=2e-5)
    # Steps of any size give the same bits.
    for chunk in (1, 7, 16):
        with new_cache(k_type, v_type, layout=layout, page_size=group) as cache:
            one = cache.add([]).sequence
            parts = [
                step(cache, one, *(x[i : i + chunk] for x in (q, k, v)), hadamard=hadamard)[0]
                for i in range(0, n, chunk)
            ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_channel_factors_keep_every_score(rng, layout):
    n = 41
    q, k, v = (rng.standard_normal((n, heads, DIM), np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    k[:, 1, 3] *= 200  # it sets the step of the codes of that head
    factors = (2.0 ** rng.integers(-4, 9, (KV_HEADS, DIM))).astype(np.float32)

    def outputs(k_type, factors):
        with new_cache(k_type, "int8", layout=layout, page_size=16) as cache:
            return step(cache, cache.add([]).sequence, q, k, v, channel_factors=factors)[0]

    whole = outputs(None, None)
    np.testing.assert_array_equal(outputs(None, factors), whole)
    of_one = np.ones((KV_HEADS, DIM), np.float32)
    of_one[1, 3] = 128
    errors = [np.abs(outputs("int8", x) - whole)[:, 2:].mean() for x in (None, of_one)]  # of the heads that read it
    assert 0 < errors[1] < errors[0] / 2


def test_scales_may_be_one_for_each_sequence_and_head(rng):
    codes = rng.integers(-127, 128, (2, 9, KV_HEADS, DIM), np.int8)
    scale = rng.random((2, KV_HEADS), np.float32) / 50
    q = rng.standard_normal((2, 1, HEADS, DIM), np.float32)
    got = headrace.attention(q, codes, codes, k_scale=scale, v_scale=scale * 2)
    keys = codes * scale[:, None, :, None]
    np.testing.assert_allclose(got, headrace.attention(q, keys, keys * 2), rtol=0, atol=1e-5)
    assert "i8" in headrace.explain(q, codes, codes, k_scale=scale, v_scale=scale)


def test_plans_of_codes_are_kept_and_their_scales_are_not(rng):
    codes = rng.integers(-127, 128, (1, 9, KV_HEADS, DIM), np.int8)
    q = rng.standard_normal((1, 1, HEADS, DIM), np.float32)
    ones = np.ones((1, KV_HEADS), np.float32) / 100
    outs = [headrace.attention(q, codes, codes, k_scale=ones, v_scale=ones * factor) for factor in (1, 2, 4)]
    np.testing.assert_array_equal(outs[1], outs[0] * 2)  # powers of two: exact
    np.testing.assert_array_equal(outs[2], outs[0] * 4)


def test_rope_and_norm_of_an_append(rng):
    q, k, v = (rng.standard_normal((5, heads, DIM), np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    angles = rng.random((30, 4), np.float32)
    weight = rng.random(DIM, np.float32)
    positions = np.array([3, 29, 0, 7, 7], np.int32)
    pages = [np.full((2, 4, KV_HEADS, DIM), np.nan, np.float32) for _ in "kv"]
    slots = np.array([6, 0, -1, 3, 7])
    for interleaved in (True, False):
        q_out = np.empty_like(q)
        headrace.kv_append(
            k=k, v=v, k_pages=pages[0], v_pages=pages[1], slot_mapping=slots, q=q, q_out=q_out, positions=positions,
            cos=np.cos(angles), sin=np.sin(angles), interleaved=interleaved, k_norm_weight=weight, norm_eps=0.5,
        )  # fmt: skip
        i, j = (np.s_[0:8:2], np.s_[1:8:2]) if interleaved else (np.s_[0:4], np.s_[4:8])
        normed = k * weight / np.sqrt((k**2).mean(-1, keepdims=True) + 0.5)
        for got, given in ((q_out, q), (pages[0].reshape(8, KV_HEADS, DIM)[slots], normed)):
            want = given.copy()
            c, s = (f(angles)[positions][:, None] for f in (np.cos, np.sin))
            want[..., i], want[..., j] = given[..., i] * c - given[..., j] * s, given[..., j] * c + given[..., i] * s
            is_stored = slots >= 0 if got is not q_out else slice(None)
            np.testing.assert_allclose(got[is_stored], want[is_stored], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(pages[1].reshape(8, KV_HEADS, DIM)[slots[slots >= 0]], v[slots >= 0])
    assert np.isnan(pages[0].reshape(8, -1)[[1, 2, 4, 5]]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_type": "int2"}, r"k_type='int2': must be one of 'int8', 'fp8', 'int4', 'kivi4', 'kivi2'"),
        ({"k_type": "kivi2"}, r"page_size=16: must be a multiple of 32 with k_dtype=u2x4"),
        ({"page_size": 8}, r"page_size=8: must be a multiple of 16"),
        ({"num_recent_pages": 0}, r"num_recent_pages=0: must be 1 to"),
        ({"head_dim": 15, "k_type": "int4"}, r"k_dtype=i4x2 with heads of 15 elements: must be a multiple of 2"),
        ({"head_dim": 18, "v_type": "kivi2"}, r"v_dtype=u2x4 with heads of 18 elements: must be a multiple of 4"),
    ],
)
def test_errors_of_a_cache_of_codes(change, message):
    with pytest.raises(ValueError, match=message):
        new_cache(**{"k_type": "int8", "v_type": "int8", **change})


def test_errors_name_the_argument(rng):
    q = rng.standard_normal((1, 1, HEADS, DIM), np.float32)
    codes, keys = np.zeros((1, 3, KV_HEADS, DIM), np.int8), np.zeros((1, 3, KV_HEADS, DIM), np.float32)
    scale = np.ones((1, KV_HEADS), np.float32)
    with pytest.raises(ValueError, match="k_scale: not given"):
        headrace.attention(q, codes, codes, v_scale=scale)
    with pytest.raises(ValueError, match="k_scale: given, but k.dtype=f32 has no codes"):
        headrace.attention(q, keys, codes, k_scale=scale, v_scale=scale)
    with pytest.raises(ValueError, match="q.dtype=int8: must be float32"):
        headrace.attention(codes, codes, codes, k_scale=scale, v_scale=scale)
    with pytest.raises(ValueError, match="q and k: neither is given"):
        headrace.kv_append()
    with pytest.raises(ValueError, match="read-only"):
        codes.flags.writeable = False
        headrace.kv_append(k=keys[0], v=keys[0], k_pages=codes, v_pages=keys, slot_mapping=np.arange(3))
    with headrace.KvCache(num_layers=1, num_kv_heads=1, head_dim=2, num_pages=1) as cache:
        with pytest.raises(ValueError, match="has no codes"):
            cache.quantised(0)
        assert cache.fill_batch([], []).recent_table is None


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the models are in the tree")
@pytest.mark.parametrize(
    ("k_type", "v_type"),
    [("int8", "int8"), ("int4", "int4"), ("int8", None), (None, "int4"), ("kivi4", "kivi4"), (None, "kivi4")],
)
def test_models_take_the_types_of_keys_and_values(k_type, v_type):
    file = GOLDEN / "tiny_llama3_f16.gguf"
    plain = headrace.LLM(file, num_threads=1, exact=True)
    llm = headrace.LLM(file, num_threads=1, exact=True, k_type=k_type, v_type=v_type)
    tokens = [3 + 5 * i % 200 for i in range(60)]
    near, exact = llm.logits(tokens), plain.logits(tokens)
    # The first group of tokens see each other alone, unquantised; with int4 keys times the Hadamard matrix.
    group = group_of(k_type)
    np.testing.assert_allclose(near[:group], exact[:group], rtol=0, atol=1e-4 if k_type == "int4" else 0)
    difference = np.abs(near[group:] - exact[group:]).max()
    assert 0 < difference < np.abs(exact).max() / 2
    # An engine has the same cache: the tokens of a session.
    params = headrace.SamplingParams(max_tokens=12, ignore_eos=True)
    engine = headrace.Engine(llm)
    engine.add(tokens[:20], params)
    answer = [token for output in engine.stream() for token in output.tokens]
    assert answer == llm.generate(tokens[:20], params).completions[0].tokens


def test_descales_of_flash_attention_3_are_checked():
    k, v = np.ones((3, 2), np.float32), np.ones((3, 2), np.float32)

    def call(q_descale=None, k=k, v=v, is_code=True, has_rotary=False):
        _arguments.check_descales(
            q_descale, (("k_descale", k, is_code), ("v_descale", v, is_code)), (3, 2), has_rotary
        )

    call()
    call(k=None, v=None, is_code=False, has_rotary=True)
    with pytest.raises(NotImplementedError, match="q_descale: queries have 16 or 32 bits"):
        call(q_descale=k)
    with pytest.raises(ValueError, match="k_descale: given, but its cache has no codes"):
        call(is_code=False)
    with pytest.raises(ValueError, match=r"v_descale.shape=\(2, 3\): must be \[batch, num_kv_heads\], \(3, 2\)"):
        call(v=v.T)
    with pytest.raises(NotImplementedError, match="rotary_cos with a k_cache of int8 codes"):
        call(has_rotary=True)


def test_a_type_that_is_unknown_is_refused():
    with pytest.raises(ValueError, match="v_type='int2': must be one of 'int8', 'fp8', 'int4', 'kivi4', 'kivi2'"):
        headrace.LLM("any.gguf", v_type="int2")


@pytest.mark.parametrize("k_type", [None, *TYPES])
def test_a_step_of_no_sequences_has_empty_arrays(k_type):
    recent = 12 if k_type else 0
    with new_cache(k_type, k_type, page_size=group_of(k_type), num_recent_pages=recent) as cache:
        assert all(array.size == 0 for array in cache.fill_batch([], 0) if array is not None)
