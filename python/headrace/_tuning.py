"""Tuned tiles and schedules: files of the program headrace tune."""

from __future__ import annotations

import ctypes
import os
import pathlib

from . import _devices, _plans
from ._library import LIBRARY, check


def use_tuning(path: str | os.PathLike[str] | None, *, device: str = "cpu") -> None:
    """Later calls on a device take the tiles and schedules that `headrace tune` found. No bit of a result changes.

    path: the file that headrace tune names, tuning-DEVICE-UNITS-VERSION.txt; None: calls on any device take none.
    device: "cpu", "cuda" or "cuda:1".

    Raises:
        ValueError: the file is damaged, or of another device or version of Headrace; the text says which.
        OSError: it cannot be read.
    """
    if path is None:
        check(LIBRARY.headrace_tuning_use(None))
    else:
        text, handle = pathlib.Path(path).read_bytes(), ctypes.c_void_p()
        of = _devices.from_text(device)
        check(
            LIBRARY.headrace_tuning_parse(
                ctypes.byref(of), text, len(text), os.fsencode(path), ctypes.byref(handle)
            )
        )
        try:
            check(LIBRARY.headrace_tuning_use(handle))
        finally:
            LIBRARY.headrace_tuning_destroy(handle)
    _plans.cache_clear()
