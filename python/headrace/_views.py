"""Views of other libraries' arrays: NumPy, DLPack, the CUDA array interface, and shapes without memory."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, NamedTuple

import numpy as np

from . import _structs
from ._plans import View

_NUMPY_DTYPES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): _structs.F32,
    np.dtype(np.float16): _structs.F16,
    np.dtype(np.float64): _structs.F64,
    np.dtype(np.int32): _structs.I32,
    np.dtype(np.uint32): _structs.U32,
    np.dtype(np.bool_): _structs.BOOL,
}
_KNOWN = "float32, float16, bfloat16, float64, int32, uint32 or bool"
# dtypes of few arrays: slots, and codes of keys and values. An array of uint8 has two 4-bit codes in a byte; codes with
# zero points have dtypes of their own, structures of one byte.
U4X2, U2X4 = np.dtype([("u4x2", np.uint8)]), np.dtype([("u2x4", np.uint8)])
_RARE_DTYPES = {
    np.dtype(np.int64): _structs.I64,
    np.dtype(np.int8): _structs.I8,
    np.dtype(np.uint8): _structs.I4X2,
    U4X2: _structs.U4X2,
    U2X4: _structs.U2X4,
}
_RARE_NAMES = {
    _structs.I64: "int64", _structs.I8: "int8", _structs.F8E4M3: "float8_e4m3fn", _structs.I4X2: "uint8",
    _structs.U4X2: "u4x2", _structs.U2X4: "u2x4",
}  # fmt: skip
_SLOTS, _CODED = ("slot_mapping", "recent_slots", "k_slots"), ("k", "v", "k_pages", "v_pages")


class TensorSpec(NamedTuple):
    """Shape, dtype and strides of a tensor without memory, for explain() and supports().

    shape: of the array it stands for. dtype: "f32", "f16", "bf16", "f64", "i32", "u32" or "bool"; of codes "i8",
    "f8e4m3", "i4x2", "u4x2" or "u2x4", of which the last three count bytes.
    strides: in elements; None: row-major.
    """

    shape: tuple[int, ...]
    dtype: str = "f32"
    strides: tuple[int, ...] | None = None


class Borrowed(NamedTuple):
    """A view and the object that must stay alive while the view is in use."""

    view: View
    owner: Any


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def numpy_dtype(code: int) -> np.dtype[Any]:
    """The NumPy dtype of a headrace_dtype; bf16 and fp8 need ml_dtypes."""
    for dtype, known in (_NUMPY_DTYPES | _RARE_DTYPES).items():
        if known == code:
            return dtype
    import ml_dtypes  # only imported for its own arrays

    return np.dtype(ml_dtypes.float8_e4m3fn if code == _structs.F8E4M3 else ml_dtypes.bfloat16)


def _of_numpy_dtype(name: str, dtype: np.dtype[Any]) -> int:
    code = _NUMPY_DTYPES.get(dtype, _RARE_DTYPES.get(dtype))
    if code is None:
        code = {"bfloat16": _structs.BF16, "float8_e4m3fn": _structs.F8E4M3}.get(dtype.name)
    if code is None:
        raise ValueError(f"{name}.dtype={dtype}: must be {_KNOWN}, in the byte order of this machine; convert {name}")
    return code


def _element_strides(name: str, strides: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    if any(stride % item_bytes for stride in strides):
        raise ValueError(
            f"{name}: strides of {strides} bytes are not multiples of its {item_bytes}-byte elements; copy {name}"
        )
    return tuple(stride // item_bytes for stride in strides)


def of_numpy(name: str, array: np.ndarray) -> Borrowed:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: must be a plain array; pass {name}.filled() or {name}.data")
    code = _of_numpy_dtype(name, array.dtype)
    strides = _element_strides(name, array.strides, array.itemsize)
    return Borrowed(View(array.ctypes.data, code, _structs.CPU, 0, array.shape, strides), array)


# Stream values of the CUDA array interface and DLPack.
_DEFAULT_STREAM = 1
NO_STREAM = -1  # no synchronization: nothing is read or written


def _read_only(name: str) -> ValueError:
    return ValueError(f"{name} is read-only: an output must be writable; pass a writable array")


# ---- the CUDA array interface, version 3 ----


def of_cuda_array(name: str, array: Any, stream: int | None, is_output: bool) -> Borrowed:
    """Assumes device 0, because the interface does not name the device; the library refuses memory of other devices."""
    interface = array.__cuda_array_interface__
    if is_output and interface["data"][1]:
        raise _read_only(name)
    if interface.get("mask") is not None:
        raise ValueError(f"{name}: its CUDA array interface has a mask: must have none; pass a filled copy of {name}")
    used = interface.get("stream")  # on another stream the call would have to synchronize
    if used and stream != NO_STREAM and used != (stream or _DEFAULT_STREAM):
        raise ValueError(
            f"{name}: in use on stream {used:#x}, and the call runs on stream {stream or _DEFAULT_STREAM:#x}: must be "
            f"the same; pass stream={used:#x}, or synchronize that stream and pass {name} without one"
        )
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    strides = row_major(shape) if strides is None else _element_strides(name, tuple(strides), dtype.itemsize)
    view = View(interface["data"][0] or 0, _of_numpy_dtype(name, dtype), _structs.CUDA, 0, shape, strides)
    return Borrowed(view, (array, interface))


# ---- DLPack ----

_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13
_DL_DTYPES = {  # (type code, bits)
    (2, 32): _structs.F32,
    (2, 16): _structs.F16,
    (2, 64): _structs.F64,
    (4, 16): _structs.BF16,
    (0, 32): _structs.I32,
    (0, 64): _structs.I64,
    (0, 8): _structs.I8,
    (1, 8): _structs.I4X2,
    (10, 8): _structs.F8E4M3,
    (1, 32): _structs.U32,
    (6, 8): _structs.BOOL,
}
_DL_READ_ONLY, _DL_IS_COPIED = 1, 2


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid.restype = ctypes.c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p


def _dlpack_stream(device_type: int, stream: int | None) -> int | None:
    """The argument of __dlpack__(stream=): the consumer's stream."""
    if device_type not in (_DL_CUDA, _DL_CUDA_MANAGED):
        return None
    return stream or _DEFAULT_STREAM


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _check_torch(name: str, tensor: Any) -> None:
    """PyTorch exports raw memory, even if a tensor's class or its neg/conj bits change the values."""
    from .torch._tensors import refuse_opaque

    refuse_opaque((name,), (tensor,))
    if tensor.is_neg():
        raise ValueError(f"{name} is a negated view: its memory must hold its values; pass {name}.resolve_neg()")


def of_dlpack(name: str, array: Any, stream: int | None, is_output: bool) -> Borrowed:
    """Borrows the memory: the capsule is not consumed and releases the memory when it is dropped."""
    if is_torch(array):
        _check_torch(name, array)
    device_type, _ = array.__dlpack_device__()
    wanted = {"stream": _dlpack_stream(int(device_type), stream)}
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0), **wanted)
        except TypeError:  # producers before DLPack 1.0 do not accept max_version
            capsule = array.__dlpack__(**wanted)
    except BufferError as error:
        raise ValueError(f"{name}: its library does not export it: {error}; pass an exportable copy") from error
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        address = _capsule_pointer(capsule, b"dltensor_versioned")
        managed = _DLManagedTensorVersioned.from_address(address)
        if managed.major != 1:
            raise ValueError(f"{name}: DLPack {managed.major}.{managed.minor} is not supported; export version 1")
        if is_output and managed.flags & _DL_READ_ONLY:
            raise _read_only(name)
        if is_output and managed.flags & _DL_IS_COPIED:
            raise ValueError(f"{name}: its library exports a copy: must be the array itself; pass another output")
        tensor = managed.tensor
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    return Borrowed(_of_dl_tensor(name, tensor), capsule)


def _of_dl_tensor(name: str, tensor: _DLTensor) -> View:
    code = _DL_DTYPES.get((tensor.type_code, tensor.bits)) if tensor.lanes == 1 else None
    if code is None:
        raise ValueError(
            f"{name}: its DLPack dtype (code {tensor.type_code}, {tensor.bits} bits, {tensor.lanes} lanes) must be "
            f"{_KNOWN}; convert {name}"
        )
    if tensor.device_type in (_DL_CPU, _DL_CUDA_HOST):
        device_type, device_id = _structs.CPU, 0
    elif tensor.device_type in (_DL_CUDA, _DL_CUDA_MANAGED):
        device_type, device_id = _structs.CUDA, tensor.device_id
    else:
        raise ValueError(f"{name}: its DLPack device type {tensor.device_type} must be the CPU or CUDA; copy it there")
    shape = tuple(tensor.shape[i] for i in range(tensor.rank))
    strides = tuple(tensor.strides[i] for i in range(tensor.rank)) if tensor.strides else row_major(shape)
    return View((tensor.data or 0) + tensor.byte_offset, code, device_type, device_id, shape, strides)


# ---- any of them ----


def of(name: str, array: Any, stream: int | None = None, is_output: bool = False) -> Borrowed:
    """The name decides which dtypes are possible: slots alone are int64, keys and values alone have codes."""
    borrowed = _borrow(name, array, stream, is_output)
    code = borrowed.view.dtype
    if code in _RARE_NAMES and name not in (_SLOTS if code == _structs.I64 else _CODED):
        raise ValueError(f"{name}.dtype={_RARE_NAMES[code]}: must be {_KNOWN}; convert {name}")
    return borrowed


def _borrow(name: str, array: Any, stream: int | None, is_output: bool) -> Borrowed:
    if isinstance(array, np.ndarray):
        if is_output and not array.flags.writeable:
            raise _read_only(name)
        return of_numpy(name, array)
    if hasattr(array, "__dlpack__"):
        return of_dlpack(name, array, stream, is_output)
    if hasattr(array, "__cuda_array_interface__"):
        return of_cuda_array(name, array, stream, is_output)
    raise TypeError(
        f"{name} is a {type(array).__name__}: must be a NumPy array or offer __dlpack__ or __cuda_array_interface__"
    )


def stream_of(array: Any) -> int | None:
    """The stream in an array's CUDA array interface; DLPack passes the consumer's stream instead."""
    if hasattr(array, "__dlpack__"):
        return None
    return getattr(array, "__cuda_array_interface__", {}).get("stream")


def is_on_host(array: Any) -> bool:
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in (_DL_CPU, _DL_CUDA_HOST)
    return not hasattr(array, "__cuda_array_interface__")


_SPEC_GAP = 1 << 30  # gap between the fake addresses of tensors


class SpecAddresses:
    """Fake addresses for tensors without memory. Never read; spaced so that nothing overlaps."""

    def __init__(self, device_type: int, device_id: int) -> None:
        self._device = (device_type, device_id)
        self._next = _SPEC_GAP

    def view(self, name: str, spec: TensorSpec) -> View:
        if spec.dtype not in _structs.DTYPE_NAMES:
            raise ValueError(f"{name}.dtype={spec.dtype!r}: must be one of {', '.join(_structs.DTYPE_NAMES)}")
        code = _structs.DTYPE_NAMES.index(spec.dtype)
        shape = tuple(spec.shape)
        strides = row_major(shape) if spec.strides is None else tuple(spec.strides)
        reach = sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True) if size > 0)
        num_bytes = (reach + 1) * _structs.DTYPE_BYTES[code]
        num_bytes += -num_bytes % _structs.WHOLE_ALIGNMENT
        address = self._next + num_bytes  # negative strides reach down
        self._next += _SPEC_GAP * math.ceil((2 * num_bytes + 1) / _SPEC_GAP)
        return View(address, code, *self._device, shape, strides)
