"""Arrays that begin anywhere in their memory: at an offset, without strides, at an address that is not aligned."""

import ctypes

import numpy as np
import pytest
from test_arrays import make

import headrace
from headrace import _structs, _views

pytestmark = pytest.mark.filterwarnings("ignore::headrace.FallbackWarning")
OLD_OR_NEW = pytest.mark.parametrize("is_old", [False, True], ids=["dlpack 1", "dlpack 0.8"])


class OffsetArray:
    """A DLPack array whose elements start `num_elements` after its data, by byte_offset; NumPy adds
    its own to the address. Without strides if it is contiguous and `has_strides` is false."""

    _TYPES = {"f": 2, "i": 0, "u": 1, "b": 6}

    def __init__(self, array, num_elements, is_old=False, has_strides=True):
        self.array, self.is_old = array, is_old
        step = array.itemsize
        rank = array.ndim
        self.shape = (ctypes.c_int64 * rank)(*array.shape)
        self.strides = (ctypes.c_int64 * rank)(*(n // step for n in array.strides))
        pointer = ctypes.POINTER(ctypes.c_int64)
        self.managed = _views._DLManagedTensorVersioned(major=1)
        tensor = self.managed.tensor
        tensor.data, tensor.byte_offset = array.ctypes.data - num_elements * step, num_elements * step
        tensor.device_type, tensor.rank, tensor.lanes = _views._DL_CPU, rank, 1
        tensor.type_code, tensor.bits = self._TYPES[array.dtype.kind], 8 * step
        tensor.shape = ctypes.cast(self.shape, pointer)
        if has_strides or not array.flags.c_contiguous:
            tensor.strides = ctypes.cast(self.strides, pointer)

    def __dlpack_device__(self):
        return _views._DL_CPU, 0

    def __dlpack__(self, *, stream=None, **versions):
        if self.is_old and versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        make_capsule = ctypes.pythonapi.PyCapsule_New
        make_capsule.restype = ctypes.py_object
        make_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        if self.is_old:
            return make_capsule(ctypes.addressof(self.managed.tensor), b"dltensor", None)
        return make_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)


def arrays_of_a_call():
    """{function: (call, {argument: array}, its outputs)} with every array argument."""
    rng = np.random.default_rng(3)
    q, k, v = (make(rng, shape) for shape in ((2, 17, 4, 16), (2, 29, 2, 16), (2, 29, 2, 16)))
    of_scores = {
        "alibi_slopes": rng.random(4, dtype=np.float32), "bias": rng.random((2, 4, 17, 29), np.float32),
        "sinks": rng.random(4, dtype=np.float32), "mask": rng.random((2, 4, 17, 29)) < 0.8,
        "tree_mask": rng.integers(0, 2**32, (2, 17, 1), dtype=np.uint32),
    }  # fmt: skip
    out, lse = headrace.attention(q, k, v, **of_scores, return_lse=True)
    flat = {"q": q[0], "k": k[0], "v": v[0], "out": np.zeros_like(q[0])}
    lengths = {"cu_seqlens_q": np.array([0, 5, 17], np.int32), "cu_seqlens_k": np.array([0, 20, 29], np.int32)}
    operands = {"q": q, "k": k, "v": v, **of_scores}
    gradients = {f"d{n}": np.zeros_like(x) for n, x in operands.items() if n in ("q", "k", "v", "bias", "sinks")}
    outputs = {"out": np.zeros_like(out), "lse": np.zeros_like(lse), "probs": np.zeros((2, 4, 17, 29), np.float32)}
    x = rng.random((3, 5), np.float32)
    backward = {**operands, "out": out, "lse": lse, "dout": q + 1, "dlse": lse + 1, **gradients}
    return {
        "attention": (headrace.attention, {**operands, **outputs}, list(outputs)),
        "ragged": (headrace.attention, {**flat, **lengths}, ["out"]),
        "attention_backward": (headrace.attention_backward, backward, list(gradients)),
        "softmax": (headrace.softmax, {"x": x, "out": x + 1, "lse": x[:, 0].copy()}, ["out", "lse"]),
        "softmax_backward": (headrace.softmax_backward, {"y": x, "dy": x + 1, "out": x + 2}, ["out"]),
    }


OFFSETS = [(f, n) for f, (_, arrays, _) in arrays_of_a_call().items() for n in arrays]


def place_of(array, kind):
    """Memory that is filled with ones, and the part of it that holds a copy of the array."""
    if kind == "unaligned":  # by one element
        room = np.ones(array.size + 1, array.dtype)
        place = room[1:].reshape(array.shape)
    else:
        step = 2 if kind == "stepped" and array.ndim > 1 else 1
        room = np.ones((step * len(array) + 5, *array.shape[1:]), array.dtype)
        place = room[3::step][: len(array)]
    place[...] = array
    return room, place


@OLD_OR_NEW
@pytest.mark.parametrize("kind", ["offset", "slice", "stepped", "without strides", "unaligned"])
@pytest.mark.parametrize(("function", "name"), OFFSETS, ids=["-".join(pair) for pair in OFFSETS])
def test_every_array_may_begin_anywhere_in_its_memory(function, name, kind, is_old):
    run, arrays, outputs = arrays_of_a_call()[function]
    lengths = {"max_seqlen_q": 12, "max_seqlen_k": 20} if function == "ragged" else {}
    run(**arrays, **lengths)  # its plan is kept
    wanted = {n: arrays[n].copy() for n in outputs}
    arrays = {n: np.zeros_like(x) if n in outputs else x for n, x in arrays.items()}
    room, place = place_of(arrays[name], kind)
    num_elements = 0 if kind in ("slice", "unaligned") else 3 * arrays[name][0].size
    given = OffsetArray(place, num_elements, is_old, kind != "without strides")
    run(**{**arrays, name: given}, **lengths)
    for n in outputs:
        assert np.array_equal(place if n == name else arrays[n], wanted[n])
    if name in outputs:
        place[...] = 1
        assert (room == 1).all()


@OLD_OR_NEW
def test_only_the_dtypes_of_the_library_are_read_from_dlpack(is_old):
    """Type codes from int to float8, all sizes of elements, vectors of elements."""
    rare = {(0, 64, 1): "int64", (0, 8, 1): "int8", (1, 8, 1): "uint8", (10, 8, 1): "float8_e4m3fn"}
    memory = np.zeros(64, np.float64)
    accepted = set()
    for code in range(16):
        for bits in (1, 4, 6, 8, 16, 32, 64, 128):
            for lanes in (0, 1, 2, 4, 8):
                array = OffsetArray(memory[:4], 0, is_old)
                tensor = array.managed.tensor
                tensor.type_code, tensor.bits, tensor.lanes = code, bits, lanes
                try:
                    view = _views.of("x", array).view
                except ValueError as error:
                    message = f"x: its DLPack dtype (code {code}, {bits} bits, {lanes} lanes) must be"
                    if (code, bits, lanes) in rare:  # Slots and codes, which have names of their own.
                        message = f"x.dtype={rare[code, bits, lanes]}: must be"
                    assert message in str(error)
                else:
                    accepted.add((code, bits, lanes))
                    assert 8 * _structs.DTYPE_BYTES[view.dtype] == bits
    assert accepted == {(2, 16, 1), (2, 32, 1), (2, 64, 1), (4, 16, 1), (0, 32, 1), (1, 32, 1), (6, 8, 1)}
