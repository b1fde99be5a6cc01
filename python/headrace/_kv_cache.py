"""KvCache: keys and values of many sequences in pages of one pool."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _plans, _structs, _views
from ._library import LIBRARY, check

_DTYPES = {"f16": _structs.F16, "bf16": _structs.BF16, "f32": _structs.F32}
_TYPESTRS = {
    _structs.F32: "<f4", _structs.F16: "<f2", _structs.BF16: "<i2", _structs.I8: "|i1", _structs.F8E4M3: "|u1",
    _structs.I4X2: "|u1", _structs.U4X2: "|u1", _structs.U2X4: "|u1", _structs.U32: "<u4",
}  # fmt: skip
_LAYOUTS = {"nhd": _structs.KV_NHD, "hnd": _structs.KV_HND}

Integers = Sequence[int] | npt.NDArray[np.integer[Any]]


class Added(NamedTuple):
    """A new sequence."""

    sequence: int  # above 0, never used twice
    num_cached: int  # tokens that it holds already


class SequenceInfo(NamedTuple):
    """State of a sequence."""

    length: int  # tokens
    num_reserved: int  # slots after them
    num_pages: int  # in the block table; 0 while swapped out
    is_swapped: bool


class Batch(NamedTuple):
    """What kernels need for a step, in host memory."""

    block_table: npt.NDArray[np.int32]  # [num_sequences, max_pages], 0 past a sequence's last page
    seqused_k: npt.NDArray[np.int32]  # [num_sequences]: tokens, those of the step included
    slot_mapping: npt.NDArray[np.int64]  # [sum of num_tokens]: page * page_size + slot
    # Of a cache of codes, else None: [num_sequences, max_recent], [sum of num_tokens]: recent page * group + index.
    recent_table: npt.NDArray[np.int32] | None = None
    recent_slots: npt.NDArray[np.int64] | None = None


class Quantised(NamedTuple):
    """What belongs to the codes of a layer, in place, by the names of the arguments of attention() and kv_append()."""

    # float32 [num_pages, page_size, num_kv_heads]; kivi4 and kivi2: uint32, whose view as float16 has scales and zero
    # points, [num_pages, page_size / 32, num_kv_heads, head_dim]. None: keys are not codes.
    k_scale: npt.NDArray[Any] | None
    v_scale: npt.NDArray[Any] | None  # kivi4 and kivi2: [num_pages, page_size, num_kv_heads, ceil(head_dim_v / 32)]
    k_recent: npt.NDArray[Any]  # [num_recent_pages, group, num_kv_heads, head_dim]
    v_recent: npt.NDArray[Any]  # [num_recent_pages, group, num_kv_heads, head_dim_v]


class KvCacheStats(NamedTuple):
    """Statistics of a cache; the fields of headrace_kv_cache_stats. Those from num_queried_tokens on are counters."""

    num_pages: int
    num_free_pages: int
    num_used_pages: int
    num_cached_pages: int
    num_shared_pages: int
    num_host_pages: int
    num_free_host_pages: int
    num_sequences: int
    num_swapped_sequences: int
    num_tokens: int
    num_unused_slots: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_evictions: int
    num_page_copies: int
    num_moved_tokens: int
    num_pages_swapped_out: int
    num_pages_swapped_in: int


def _code(name: str, value: str, codes: dict[str, int]) -> int:
    if value not in codes:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, codes))}")
    return codes[value]


def code_dtype(name: str, stored: str | None) -> int:
    """-1: the dtype of the cache."""
    return -1 if stored is None else _code(name, stored, _structs.CODES)


def _device(device: str) -> tuple[int, int]:
    kind, _, number = device.partition(":")
    if device == "cpu":
        return _structs.CPU, 0
    if kind != "cuda" or (number and not number.isdecimal()) or device.endswith(":"):
        raise ValueError(f"device={device!r}: must be 'cpu', 'cuda' or 'cuda:NUMBER'")
    return _structs.CUDA, int(number or 0)


def _integers(name: str, values: Integers, dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
    """A contiguous copy or view; integers only, because a conversion would hide a mistake."""
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(dtype)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: {array.dtype} {array.shape}: must be a list or array of integers with one axis; convert it"
        )
    limits = np.iinfo(dtype)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if not limits.min <= low <= high <= limits.max:
        raise ValueError(f"{name}: must be {limits.dtype}, {low} to {high} arrived; correct it")
    return np.ascontiguousarray(array, dtype)


class _Handle:
    """Owns the C cache. Arrays of pages refer to it, so the memory outlives them."""

    def __init__(self, options: _structs.KvCacheOptions) -> None:
        self.pointer = ctypes.c_void_p()
        check(LIBRARY.headrace_kv_cache_create(ctypes.addressof(options), ctypes.addressof(self.pointer)))

    def __del__(self, destroy: Any = LIBRARY.headrace_kv_cache_destroy) -> None:
        destroy(self.pointer)


class _Pages:
    """Exports pages of a layer through the array interface of NumPy, or that of CUDA; bf16 and fp8 as their bits."""

    def __init__(self, handle: _Handle, tensor: _structs.Tensor) -> None:
        self._handle = handle
        self.dtype, self.device_id = tensor.dtype, tensor.device_id
        self.is_cuda = tensor.device_type == _structs.CUDA
        rank, bytes_each = tensor.rank, _structs.DTYPE_BYTES[tensor.dtype]
        interface = {
            "version": 3,
            "typestr": _TYPESTRS[tensor.dtype],
            "data": (tensor.data, False),
            "shape": tuple(tensor.shape[:rank]),
            "strides": tuple(bytes_each * stride for stride in tensor.strides[:rank]),
        }
        setattr(self, "__cuda_array_interface__" if self.is_cuda else "__array_interface__", interface)


class KvCache:
    """Keys and values of many sequences in pages of one pool, shared between sequences until one of them writes.

    A step of a sequence is: reserve() slots, fill_batch() for the kernels, write keys and values to the slots and read
    the pages (`attention(..., block_table=, seqused_k=)`), commit() the tokens. With k_type or v_type pages hold codes,
    which kv_append() writes and attention() reads with the arrays of quantised() and of the batch. Use a cache on one
    thread at a time.
    Sources: Kwon et al., "PagedAttention", 2023; Zheng et al., "SGLang", 2023.

    A context manager: close() gives the pages back as soon as no array of them is left.

    Args:
        num_layers: layers that have keys and values.
        num_kv_heads, head_dim, head_dim_v: of the model; head_dim_v None: head_dim.
        num_pages: in the pool. num_host_pages: in host memory, for swapped sequences.
        page_size: tokens per page.
        dtype: "f16", "bf16" or "f32".
        k_type, v_type: of stored keys and values, "int8", "fp8", "int4", "kivi4" or "kivi2": codes but for the newest
            group of 16 tokens, of 32 with keys of KIVI's form; page_size is a multiple of the group. None: dtype.
        num_recent_pages: with codes, pages of one group of the dtype: two for each sequence and one for each group of
            tokens that are reserved at once.
        layout: memory order of a page, "nhd" [page_size, num_kv_heads, head_dim] or "hnd".
        device: "cpu", "cuda" or "cuda:NUMBER".

    Raises:
        ValueError, MemoryError, NotImplementedError, RuntimeError: as attention(). A call of a method that raises has
            changed nothing; MemoryError from reserve() and swap_in() means that pages are missing.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int,
        head_dim_v: int | None = None,
        num_host_pages: int = 0,
        page_size: int = 16,
        dtype: str = "f16",
        k_type: str | None = None,
        v_type: str | None = None,
        num_recent_pages: int = 0,
        layout: str = "nhd",
        device: str = "cpu",
    ) -> None:
        options = _structs.KvCacheOptions()
        check(LIBRARY.headrace_kv_cache_options_init_sized(ctypes.addressof(options), ctypes.sizeof(options)))
        numbers = {
            "num_layers": num_layers, "num_kv_heads": num_kv_heads, "head_dim": head_dim,
            "head_dim_v": 0 if head_dim_v is None else head_dim_v, "num_pages": num_pages,
            "num_host_pages": num_host_pages, "page_size": page_size, "num_recent_pages": num_recent_pages,
        }  # fmt: skip
        for name, value in numbers.items():
            setattr(options, name, _plans.to_integer(name, value, 64))
        options.dtype, options.layout = _code("dtype", dtype, _DTYPES), _code("layout", layout, _LAYOUTS)
        options.k_dtype, options.v_dtype = code_dtype("k_type", k_type), code_dtype("v_type", v_type)
        options.device_type, options.device_id = _device(device)
        self._handle: _Handle | None = _Handle(options)
        self._page_size = options.page_size
        self._has_codes = k_type is not None or v_type is not None
        self._recent_group = 32 if k_type in ("kivi4", "kivi2") else 16

    def __enter__(self) -> KvCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of the cache. Its memory is freed when no array of its pages is left."""
        self._handle = None

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self._page_size

    def _open(self) -> _Handle:
        if self._handle is None:
            raise ValueError("the KvCache is closed: must be open; make a new one")
        return self._handle

    def _call(self, name: str, *arguments: Any) -> None:
        check(getattr(LIBRARY, f"headrace_kv_cache_{name}")(self._open().pointer, *arguments))

    # ---- pages

    def _pages(self, name: str, layer: int) -> _Pages:
        tensor = _structs.Tensor()
        self._call(name, _plans.to_integer("layer", layer, 64), ctypes.addressof(tensor))
        return _Pages(self._open(), tensor)

    def _array(self, name: str, pages: _Pages) -> npt.NDArray[Any]:
        if pages.is_cuda:
            raise ValueError(
                f"{name}: the pages are in device memory, and NumPy's arrays are on the host; "
                "pass the cache to headrace.torch.kv_pages()"
            )
        array = np.asarray(pages)
        has_own_dtype = pages.dtype in (_structs.BF16, _structs.F8E4M3, _structs.U4X2, _structs.U2X4)
        return array.view(_views.numpy_dtype(pages.dtype)) if has_own_dtype else array

    def k_pages(self, layer: int) -> npt.NDArray[Any]:
        """The key pages of a layer, [num_pages, page_size, num_kv_heads, head_dim], in place (bf16 and fp8 need
        ml_dtypes; int4 is uint8 [.., head_dim / 2]; kivi4 and kivi2 are structures of one byte, [.., head_dim / 2] and
        [.., head_dim / 4], which view(numpy.uint8) reads). For PyTorch, and on a GPU: headrace.torch.kv_pages()."""
        return self._array("k_pages", self._pages("k_pages", layer))

    def v_pages(self, layer: int) -> npt.NDArray[Any]:
        """The value pages of a layer, [num_pages, page_size, num_kv_heads, head_dim_v]; as k_pages()."""
        return self._array("v_pages", self._pages("v_pages", layer))

    def quantised(self, layer: int) -> Quantised:
        """Scales and recent pages of a layer of codes, in place. ValueError: the cache has no codes."""
        struct = _structs.QuantisedKv(ctypes.sizeof(_structs.QuantisedKv))
        self._call("quantised", _plans.to_integer("layer", layer, 64), ctypes.addressof(struct))

        def array(name: str) -> Any:
            tensor = getattr(struct, name)
            return self._array(name, _Pages(self._open(), tensor)) if tensor.rank else None

        return Quantised(*map(array, Quantised._fields))

    # ---- sequences

    def add(self, tokens: Integers, salt: int = 0) -> Added:
        """Adds a sequence that begins with the longest prefix of `tokens` in the prefix cache, in whole pages and at
        most all but one of the tokens; reserve and commit the others. Only sequences with equal salt share pages."""
        ids = _integers("tokens", tokens, np.int32)
        if not 0 <= salt < 1 << 64:
            raise ValueError(f"salt={salt}: must be 0 to 2**64 - 1; pass a hash of the tenant or adapter")
        sequence, num_cached = ctypes.c_int64(), ctypes.c_int64()
        self._call(
            "add", ids.ctypes.data, ids.size, salt, ctypes.addressof(sequence), ctypes.addressof(num_cached)
        )  # fmt: skip
        return Added(sequence.value, num_cached.value)

    def fork(self, sequence: int) -> int:
        """A new sequence with the tokens of another one, in the same pages until one of the two writes."""
        fork = ctypes.c_int64()
        self._call("fork", _plans.to_integer("sequence", sequence, 64), ctypes.addressof(fork))
        return fork.value

    def free(self, sequence: int) -> None:
        """Removes a sequence. Its full pages can be found by their tokens until they are reused."""
        self._call("free", _plans.to_integer("sequence", sequence, 64))

    def reserve(self, sequence: int, num_tokens: int, stream: int | None = None) -> None:
        """Makes at least num_tokens slots after the sequence's tokens writable."""
        number = _plans.to_integer("num_tokens", num_tokens, 64)
        self._call("reserve", _plans.to_integer("sequence", sequence, 64), number, stream)

    def commit(self, sequence: int, tokens: Integers) -> None:
        """Appends tokens whose keys and values are in the first reserved slots."""
        ids = _integers("tokens", tokens, np.int32)
        self._call("commit", _plans.to_integer("sequence", sequence, 64), ids.ctypes.data, ids.size)

    def truncate(self, sequence: int, length: int) -> None:
        """Keeps the first `length` tokens and no reserved slots. Of codes: `length` is in the newest group of
        tokens, 16 or with keys of KIVI's form 32, or a multiple of the group."""
        number = _plans.to_integer("length", length, 64)
        self._call("truncate", _plans.to_integer("sequence", sequence, 64), number)

    def move(self, sequence: int, positions: Integers, stream: int | None = None) -> None:
        """Copies the keys and values at `positions`, ascending and all reserved, to the first reserved slots, and gives
        up the other reserved slots (the accepted nodes of a draft tree)."""
        of = _integers("positions", positions, np.int64)
        self._call("move", _plans.to_integer("sequence", sequence, 64), of.ctypes.data, of.size, stream)

    def swap_out(self, sequence: int, stream: int | None = None) -> None:
        """Copies a sequence to host pages and frees its pages."""
        self._call("swap_out", _plans.to_integer("sequence", sequence, 64), stream)

    def swap_in(self, sequence: int, stream: int | None = None) -> None:
        """Copies a sequence back."""
        self._call("swap_in", _plans.to_integer("sequence", sequence, 64), stream)

    def info(self, sequence: int) -> SequenceInfo:
        """State of a sequence."""
        info = _structs.KvSequenceInfo(ctypes.sizeof(_structs.KvSequenceInfo))
        number = _plans.to_integer("sequence", sequence, 64)
        self._call("get_sequence_info", number, ctypes.addressof(info))
        return SequenceInfo(info.length, info.num_reserved, info.num_pages, bool(info.is_swapped))

    # ---- a step

    def fill_batch(
        self, sequences: Integers, num_tokens: Integers | int, max_pages: int | None = None
    ) -> Batch:
        """The arrays of a step, in the order of `sequences`.

        Args:
            sequences: ids.
            num_tokens: reserved slots that the step writes, for each sequence, or one number for all.
            max_pages: row length of block_table; default: the most pages of a sequence.
        """
        ids = _integers("sequences", sequences, np.int64)
        counts = np.full(ids.size, num_tokens) if isinstance(num_tokens, int) else num_tokens
        counts = _integers("num_tokens", counts, np.int32)
        if counts.size != ids.size:
            raise ValueError(f"num_tokens has {counts.size} entries: must have {ids.size}, as sequences; pass one each")
        if max_pages is None:
            max_pages = max((self.info(one).num_pages for one in ids.tolist()), default=0)
        max_pages = _plans.to_integer("max_pages", max_pages, 64)
        block_table = np.zeros((ids.size, max(max_pages, 0)), np.int32)
        seqused_k = np.zeros(ids.size, np.int32)
        slot_mapping = np.zeros(max(int(counts.sum(dtype=np.int64)), 0), np.int64)
        batch = _structs.KvBatch(
            ctypes.sizeof(_structs.KvBatch), ids.ctypes.data, counts.ctypes.data, ids.size, max_pages,
            block_table.ctypes.data, seqused_k.ctypes.data, slot_mapping.ctypes.data, slot_mapping.size,
        )  # fmt: skip
        if not self._has_codes:
            self._call("fill_batch", ctypes.addressof(batch))
            return Batch(block_table, seqused_k, slot_mapping)
        # The most groups that num_tokens tokens can touch, wherever they begin.
        batch.max_recent = (int(counts.max(initial=0)) + 2 * (self._recent_group - 1)) // self._recent_group
        recent_table = np.zeros((ids.size, max(batch.max_recent, 0)), np.int32)
        recent_slots = np.zeros_like(slot_mapping)
        batch.recent_table, batch.recent_slots = recent_table.ctypes.data, recent_slots.ctypes.data
        self._call("fill_batch", ctypes.addressof(batch))
        return Batch(block_table, seqused_k, slot_mapping, recent_table, recent_slots)

    def stats(self) -> KvCacheStats:
        """Statistics of the cache. Visits every page."""
        stats = _structs.KvCacheStats(ctypes.sizeof(_structs.KvCacheStats))
        self._call("get_stats", ctypes.addressof(stats))
        return KvCacheStats(*(getattr(stats, name) for name in KvCacheStats._fields))
