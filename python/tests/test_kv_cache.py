"""headrace.KvCache: the calls of kv_cache.h, pages as arrays and tensors, lifetimes, errors."""

import gc

import numpy as np
import oracle
import pytest

import headrace

DTYPES = ["float32", "float16"] + (["bfloat16"] if oracle.BF16 is not None else [])
NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def new_cache(**changes):
    shape = {"num_layers": 2, "num_kv_heads": 2, "head_dim": 8, "num_pages": 12, "page_size": 4, "dtype": "f32"}
    return headrace.KvCache(**{**shape, **changes})


def write(cache, slots, layer, keys, values):
    for pages, rows in ((cache.k_pages(layer), keys), (cache.v_pages(layer), values)):
        pages[slots // cache.page_size, slots % cache.page_size] = rows


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_reads_what_a_step_wrote(rng, layout, dtype):
    kind = oracle.BF16 if dtype == "bfloat16" else np.dtype(dtype)
    lengths = [9, 3, 8]
    with new_cache(dtype=NAMES[dtype], layout=layout, head_dim_v=6, num_pages=20) as cache:
        assert cache.k_pages(1).shape == (20, 4, 2, 8) and cache.v_pages(1).shape == (20, 4, 2, 6)
        ids = [cache.add(rng.integers(0, 99, n)).sequence for n in lengths]
        for one, n in zip(ids, lengths):
            cache.reserve(one, n)
        batch = cache.fill_batch(ids, lengths)
        assert batch.block_table.shape == (3, 3) and batch.seqused_k.tolist() == lengths
        k = rng.standard_normal((sum(lengths), 2, 8)).astype(kind)
        v = rng.standard_normal((sum(lengths), 2, 6)).astype(kind)
        write(cache, batch.slot_mapping, 1, k, v)
        for one, n in zip(ids, lengths):
            cache.commit(one, list(range(n)))
            assert cache.info(one) == (n, 0, -(-n // 4), False)
        q = rng.standard_normal((3, 1, 4, 8)).astype(kind)
        out = headrace.attention(
            q, cache.k_pages(1), cache.v_pages(1), block_table=batch.block_table, seqused_k=batch.seqused_k
        )
        for i, end in enumerate(np.cumsum(lengths)):
            part = slice(end - lengths[i], end)
            np.testing.assert_array_equal(out[i], headrace.attention(q[i : i + 1], k[None, part], v[None, part])[0])


def filled(cache, tokens, salt=0):
    """A new sequence with these tokens whose keys are the tokens."""
    one, num_cached = cache.add(tokens, salt)
    new = list(tokens)[num_cached:]
    cache.reserve(one, len(new))
    slots = cache.fill_batch([one], len(new)).slot_mapping
    rows = np.asarray(new, np.float32)[:, None, None]
    for layer in range(2):
        write(cache, slots, layer, rows, -rows)
    cache.commit(one, new)
    return one, num_cached


def keys_of(cache, one, layer=0):
    batch = cache.fill_batch([one], 0)
    pages = cache.k_pages(layer)[batch.block_table[0]]
    return pages.reshape(-1, 2, 8)[: batch.seqused_k[0], 0, 0].tolist()


def test_prefixes_forks_and_rollback():
    with new_cache() as cache:
        one, cached = filled(cache, range(10))
        assert cached == 0
        assert filled(cache, range(10))[1] == 8  # two full pages, not the token that gives logits
        assert filled(cache, range(10), salt=7)[1] == 0
        fork = cache.fork(one)
        cache.reserve(fork, 1)
        slot = cache.fill_batch([fork], 1).slot_mapping
        write(cache, slot, 0, 50.0, 0.0)
        cache.commit(fork, [50])
        assert keys_of(cache, one) == list(range(10))
        assert keys_of(cache, fork) == [*range(10), 50]
        assert cache.stats().num_page_copies == 1
        cache.truncate(fork, 5)
        assert keys_of(cache, fork) == list(range(5))
        cache.free(one)
        with pytest.raises(ValueError, match="sequence"):
            cache.info(one)
        assert cache.stats().num_sequences == 3


def test_accepted_drafts_move_together():
    with new_cache() as cache:
        one, _ = filled(cache, range(3))
        cache.reserve(one, 4)
        slots = cache.fill_batch([one], 4).slot_mapping
        write(cache, slots, 0, np.arange(30.0, 34.0)[:, None, None], 0.0)
        cache.move(one, [3, 5])
        cache.commit(one, np.array([30, 32], np.int64))
        assert keys_of(cache, one) == [0, 1, 2, 30, 32]


def test_swapped_sequences_come_back():
    with new_cache(num_host_pages=4) as cache:
        one, _ = filled(cache, range(10))
        cache.swap_out(one)
        assert cache.info(one).is_swapped and cache.stats().num_swapped_sequences == 1
        cache.k_pages(0)[:] = np.nan  # others may write there
        cache.swap_in(one)
        assert keys_of(cache, one)[8:] == [8, 9]


def test_missing_pages_change_nothing():
    with new_cache(num_pages=3) as cache:
        one, _ = filled(cache, range(10))
        other = cache.add([7]).sequence
        before = cache.stats()
        with pytest.raises(MemoryError, match="pages"):
            cache.reserve(other, 1)
        assert cache.stats() == before and keys_of(cache, one) == list(range(10))


def test_stats_have_the_names_of_the_header():
    fields = [name for name, _ in headrace._structs.KvCacheStats._fields_]
    assert ["struct_size", *new_cache().stats()._fields] == fields


def test_arrays_of_pages_keep_the_memory():
    cache = new_cache(num_pages=1000)
    pages = cache.k_pages(0)
    cache.close()
    del cache
    gc.collect()
    pages[:] = 3
    assert pages.sum() == 3 * pages.size


def test_a_closed_cache_refuses_calls():
    with new_cache() as cache:
        pass
    cache.close()
    for call in (cache.stats, lambda: cache.add([1]), lambda: cache.k_pages(0), lambda: cache.fill_batch([], 0)):
        with pytest.raises(ValueError, match="the KvCache is closed"):
            call()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dtype": "f64"}, "dtype='f64': must be one of 'f16', 'bf16', 'f32'"),
        ({"layout": "bhsd"}, "layout='bhsd': must be one of 'nhd', 'hnd'"),
        ({"device": "gpu"}, "device='gpu': must be 'cpu', 'cuda' or 'cuda:NUMBER'"),
        ({"device": "cuda:"}, "device='cuda:'"),
        ({"num_pages": 0}, "num_pages=0: must be 1 to"),
        ({"head_dim": 577}, "head_dim=577: must be 1 to 576"),
        ({"page_size": 2.5}, "page_size=2.5: must be an integer"),
        ({"head_dim_v": -1}, "head_dim_v=-1"),
    ],
)
def test_options_are_checked(change, text):
    with pytest.raises(ValueError, match=text):
        new_cache(**change)


def test_arguments_are_checked():
    cache = new_cache()
    one, _ = filled(cache, range(5))
    for call, text in [
        (lambda: cache.add([1.5]), r"tokens: float64 \(1,\): must be a list or array of integers"),
        (lambda: cache.add([[1]]), r"tokens: int64 \(1, 1\)"),
        (lambda: cache.add([True]), "tokens: bool"),
        (lambda: cache.add([2**31]), "tokens: must be int32, 2147483648 to 2147483648 arrived"),
        (lambda: cache.add([1], salt=-1), "salt=-1"),
        (lambda: cache.fork(99), "sequence=99"),
        (lambda: cache.free(1.5), "sequence=1.5: must be an integer"),
        (lambda: cache.commit(one, [1] * 9), "num_tokens=9"),
        (lambda: cache.truncate(one, 6), "length=6"),
        (lambda: cache.k_pages(2), "layer=2"),
        (lambda: cache.fill_batch([one], [1, 2]), "num_tokens has 2 entries: must have 1"),
        (lambda: cache.fill_batch([one], 4), r"num_tokens\[0\]=4"),
        (lambda: cache.fill_batch([one], -1), r"num_tokens\[0\]=-1"),
        (lambda: cache.fill_batch([one], 0, max_pages=1), "max_pages=1"),
        (lambda: cache.fill_batch([77], 0), "77"),
        (lambda: cache.move(one, [4]), r"positions\[0\]=4"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    assert keys_of(cache, one) == list(range(5))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_pages_as_tensors(dtype, layout):
    torch = pytest.importorskip("torch")
    import headrace.torch as ht

    cache = new_cache(dtype=dtype, layout=layout, head_dim_v=6)
    one = cache.add(range(9)).sequence
    cache.reserve(one, 9)
    batch = cache.fill_batch([one], 9)
    k_pages, v_pages = ht.kv_pages(cache, 1)
    assert k_pages.dtype == {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    assert k_pages.shape == (12, 4, 2, 8) and v_pages.shape == (12, 4, 2, 6)
    k, v = (torch.randn(1, 9, 2, n, generator=torch.Generator().manual_seed(n)).to(k_pages.dtype) for n in (8, 6))
    q = k[:, -1:].repeat(1, 1, 2, 1)
    slots = torch.from_numpy(batch.slot_mapping)
    k_pages[slots // 4, slots % 4], v_pages[slots // 4, slots % 4] = k[0], v[0]
    cache.close()
    del cache
    gc.collect()
    out = ht.flash_attn_with_kvcache(
        q, k_pages, v_pages, cache_seqlens=torch.from_numpy(batch.seqused_k),
        block_table=torch.from_numpy(batch.block_table),
    )  # fmt: skip
    assert torch.equal(out, ht.flash_attn_func(q, k, v))
