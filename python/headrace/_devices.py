"""Descriptions of devices: plain values, also of machines that are not here."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

from . import _structs
from ._library import LIBRARY, check


class Device(NamedTuple):
    """One device of this process."""

    name: str  # "cpu" or "cuda:0": what explain(device=...) takes
    description: str
    sm: int  # CUDA: compute capability * 10; CPU: 0
    num_units: int  # CUDA: multiprocessors; CPU: threads that a call may use


def _new() -> _structs.DeviceInfo:
    return _structs.DeviceInfo(struct_size=ctypes.sizeof(_structs.DeviceInfo))


def from_text(text: str) -> _structs.DeviceInfo:
    """ "cpu", "cpu:avx2", "cpu:avx512:16", "cuda", "cuda:1" (of this process), "sm90:132" (any GPU)."""
    device = _new()
    check(LIBRARY.headrace_device_from_text(text.encode(), ctypes.byref(device)))
    return device


@functools.lru_cache(maxsize=256)
def of_tensors(device_type: int, device_id: int, num_threads: int) -> _structs.DeviceInfo:
    """The device that tensors lie on; num_threads 0: as many as the library's own rule gives (CPU)."""
    device = _new()
    if device_type == _structs.CUDA:
        check(LIBRARY.headrace_cuda_info(device_id, ctypes.byref(device)))
        return device
    check(LIBRARY.headrace_cpu_info(ctypes.byref(device)))
    if num_threads:
        device.num_units = num_threads
    return device


def num_cuda_devices() -> int:
    """Fails (RuntimeError, NotImplementedError) where the build or the driver has no CUDA."""
    count = ctypes.c_int32()
    check(LIBRARY.headrace_num_cuda_devices(ctypes.byref(count)))
    return count.value


def _public(name: str, device: _structs.DeviceInfo) -> Device:
    return Device(name, device.name.decode("utf-8", "replace"), device.sm, device.num_units)


def devices() -> list[Device]:
    """The CPU and every CUDA device that this process sees (none where build or driver has no CUDA).

    Raises:
        ValueError: an environment variable of the library has a value that it cannot have.
        RuntimeError: a device that is there could not be read.
    """
    found = [_public("cpu", of_tensors(_structs.CPU, 0, 0))]
    try:
        count = num_cuda_devices()
    except (RuntimeError, ValueError):
        count = 0
    return found + [_public(f"cuda:{i}", of_tensors(_structs.CUDA, i, 0)) for i in range(count)]
