"""Device descriptions: plain values; the device need not be present."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

from . import _structs
from ._library import LIBRARY, check


class Device(NamedTuple):
    """One device of this process."""

    name: str  # "cpu" or "cuda:0", as in explain(device=...)
    description: str
    sm: int  # CUDA: compute capability * 10; CPU: 0
    num_units: int  # CUDA: multiprocessors; CPU: threads per call


def _new() -> _structs.DeviceInfo:
    return _structs.DeviceInfo(struct_size=ctypes.sizeof(_structs.DeviceInfo))


def from_text(text: str) -> _structs.DeviceInfo:
    """ "cpu", "cpu:avx2", "cpu:avx512:16", "cuda", "cuda:1" (of this process), "sm90:132" (any GPU)."""
    device = _new()
    check(LIBRARY.headrace_device_from_text(text.encode(), ctypes.byref(device)))
    return device


@functools.lru_cache(maxsize=256)
def of_tensors(device_type: int, device_id: int, num_threads: int) -> _structs.DeviceInfo:
    """The device of tensors; num_threads 0: the library's default (CPU)."""
    device = _new()
    if device_type == _structs.CUDA:
        check(LIBRARY.headrace_cuda_info(device_id, ctypes.byref(device)))
        return device
    check(LIBRARY.headrace_cpu_info(ctypes.byref(device)))
    if num_threads:
        device.num_units = num_threads
    return device


def num_cuda_devices() -> int:
    """Raises RuntimeError or NotImplementedError if the build or the driver lacks CUDA."""
    count = ctypes.c_int32()
    check(LIBRARY.headrace_num_cuda_devices(ctypes.byref(count)))
    return count.value


def _public(name: str, device: _structs.DeviceInfo) -> Device:
    return Device(name, device.name.decode("utf-8", "replace"), device.sm, device.num_units)


def devices() -> list[Device]:
    """The CPU and every CUDA device visible to this process (none if the build or the driver lacks CUDA).

    Raises:
        ValueError: an environment variable of the library has an invalid value.
        RuntimeError: the properties of a device could not be read.
    """
    found = [_public("cpu", of_tensors(_structs.CPU, 0, 0))]
    try:
        count = num_cuda_devices()
    except (RuntimeError, ValueError):
        count = 0
    return found + [_public(f"cuda:{i}", of_tensors(_structs.CUDA, i, 0)) for i in range(count)]
