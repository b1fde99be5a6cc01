"""block_table with rows of any length (page_indptr): the bits of a block_table of one row length."""

import numpy as np
import pytest
from test_pages import KEYS, int32, paged, tensors
from torch_data import DEVICES, make, same_bits, torch

import headrace
import headrace.torch as ht


def csr(table, keys, page_size, device="cpu"):
    """The table with rows of any length: (block_table, page_indptr), with entries that no sequence uses."""
    counts = [-(-n // page_size) for n in keys]
    spare = int32([2147480000] * 2)
    entries = torch.cat([spare, *(row[:n].cpu() for row, n in zip(table, counts, strict=True)), spare])
    return entries.to(device), int32([2 + sum(counts[:i]) for i in range(len(keys) + 1)], device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sq", [1, 3, 40])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_page_indptr_has_the_bits_of_a_block_table(page_size, sq, device):
    q, k, v = tensors(torch.float32, device, sq=sq)
    k_pages, v_pages, table = paged(k, v, KEYS, page_size)
    options = {"causal": True, "seqused_k": int32(KEYS, device), "return_lse": True}
    want = ht.attention(q, k_pages, v_pages, block_table=table, **options)
    entries, indptr = csr(table, KEYS, page_size, device)
    for bound in (None, max(KEYS), 1000):
        options["max_seqlen_k"] = bound
        got = ht.attention(q, k_pages, v_pages, block_table=entries, page_indptr=indptr, **options)
        assert all(map(same_bits, got, want))
    if device == "cpu":
        arrays = {n: x.numpy() for n, x in {"block_table": entries, "page_indptr": indptr}.items()}
        arrays["seqused_k"] = np.array(KEYS, np.int32)
        args = [x.numpy() for x in (q, k_pages, v_pages)]
        out = headrace.attention(*args, causal=True, max_seqlen_k=max(KEYS), **arrays)
        assert np.array_equal(out, want[0].numpy())
        text = headrace.explain(*args, causal=True, max_seqlen_k=max(KEYS), **arrays)
        assert f"at most {-(-max(KEYS) // page_size)} of a sequence" in text


def test_compiled_calls_take_page_indptr():
    q, k, v = tensors()
    k_pages, v_pages, table = paged(k, v, KEYS, 16)

    def call(q, k, v, entries, indptr, used):
        return ht.attention(q, k, v, block_table=entries, page_indptr=indptr, seqused_k=used, max_seqlen_k=100)

    arguments = (q, k_pages, v_pages, *csr(table, KEYS, 16), int32(KEYS))
    assert same_bits(torch.compile(call, backend="eager", fullgraph=True)(*arguments), call(*arguments))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"page_indptr": int32([0, 2])}, r"page_indptr.shape\[0\]=2: must equal batch \+ 1=3"),
        ({"page_indptr": torch.tensor([0.0, 2, 3])}, "page_indptr.dtype=f32: must be i32"),
        ({"page_indptr": int32([0, 3, 2])}, r"page_indptr\[2\]=2 after page_indptr\[1\]=3: must not decrease"),
        ({"page_indptr": int32([0, 2, 4])}, r"page_indptr\[2\]=4: must be at most 3"),
        ({"page_indptr": int32([0, 1, 3])}, r"page_indptr\[1\]=1 after .* at least 2 more"),
        ({"block_table": int32([1, 9, 2])}, r"block_table\[1\]=9: must be 0 to 3"),
        ({"block_table": int32([[1, 0], [2, 3]])}, "block_table.rank=2: must be 1"),
        ({"block_table": None}, "page_indptr: given without block_table"),
        ({"page_indptr": None}, "block_table.rank=1: must be 2"),
    ],
)
def test_bad_page_indptr_is_refused(change, text):
    q, pages = make((2, 1, 4, 8)), make((4, 4, 2, 8))
    good = {"block_table": int32([1, 0, 2]), "page_indptr": int32([0, 2, 3]), "seqused_k": int32([7, 1])}
    ht.attention(q, pages, pages, **good)
    with pytest.raises(ValueError, match=text):
        ht.attention(q, pages, pages, **{**good, **change})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_page_indptr_replays_in_a_graph():
    q, k, v = tensors(torch.bfloat16, "cuda", sq=1, dim=64)
    k_pages, v_pages, table = paged(k, v, KEYS, 16)
    entries, indptr = csr(table, KEYS, 16, "cuda")
    used = int32(KEYS, "cuda")
    arguments = {"block_table": entries, "page_indptr": indptr, "seqused_k": used, "max_seqlen_k": 100}
    ht.attention(q, k_pages, v_pages, **arguments)  # plans are made before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ht.attention(q, k_pages, v_pages, **arguments)
    for keys in (KEYS, KEYS[::-1], [16] * len(KEYS)):
        other, offsets = csr(table if keys is KEYS else table.flip(0), keys, 16, "cuda")
        if keys == [16] * len(KEYS):
            other, offsets = csr(table[-1:].expand(len(KEYS), -1), keys, 16, "cuda")
        entries[: len(other)] = other
        indptr.copy_(offsets)
        used.copy_(int32(keys, "cuda"))
        graph.replay()
        rows = torch.zeros((len(KEYS), 8), dtype=torch.int32, device="cuda")
        for b, n in enumerate(keys):
            count = -(-n // 16)
            rows[b, :count] = entries[offsets[b] : offsets[b] + count]
        assert same_bits(out, ht.attention(q, k_pages, v_pages, block_table=rows, seqused_k=used))
    headrace.check()
