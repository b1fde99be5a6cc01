"""Finds and loads libheadrace.so, and turns its statuses into exceptions."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
from typing import Any, NoReturn

from . import _structs

_FILE = "libheadrace.so"
# Functions that do not return a status.
_RESULTS = {
    "last_error": ctypes.c_char_p,
    "status_name": ctypes.c_char_p,
    "version": ctypes.c_char_p,
    "build_info": ctypes.c_char_p,
    "plan_workspace_bytes": ctypes.c_size_t,
    "plan_kernel": ctypes.c_char_p,
    "plan_explain": ctypes.c_char_p,
    "kernel_name": ctypes.c_char_p,
    "kernel_summary": ctypes.c_char_p,
    "kernel_refusal": ctypes.c_char_p,
    "plan_destroy": None,
    "prediction_destroy": None,
    "tuning_destroy": None,
    "kv_cache_destroy": None,
    "model_destroy": None,
    "model_shape_name": ctypes.c_char_p,
    "session_destroy": None,
    "completions_count": ctypes.c_int64,
    "completions_destroy": None,
    "engine_destroy": None,
    "output_destroy": None,
}
# Functions whose arguments are all pointers, with their number: ctypes must not truncate Python ints to 32 bits.
_POINTERS = {
    "plan_destroy": 1,
    "plan_workspace_bytes": 1,
    "plan_is_fallback": 1,
    "plan_kernel": 1,
    "plan_explain": 1,
    "prediction_get": 2,
    "prediction_destroy": 1,
    "tuning_use": 1,
    "tuning_destroy": 1,
    "attention_problem": 3,
    "attention_backward_problem": 4,
    "plan_attention": 3,
    "attention_supports": 2,
    "softmax_forward": 3,
    "softmax_backward": 3,
    "kv_append": 3,
    "merge_states": 2,
    "sparq_append": 2,
    "kv_cache_create": 2,
    "kv_cache_destroy": 1,
    "kv_cache_fill_batch": 2,
    "kv_cache_get_stats": 2,
    "model_load": 3,
    "model_destroy": 1,
    "model_get_info": 2,
    "model_shape_find": 2,
    "session_create": 3,
    "session_destroy": 1,
    "session_generate": 3,
    "completions_count": 1,
    "completions_destroy": 1,
    "engine_create": 3,
    "engine_destroy": 1,
    "engine_add": 3,
    "engine_step": 2,
    "engine_poll": 2,
    "engine_get_stats": 2,
    "output_get": 2,
    "output_destroy": 1,
}
# The others of a cache: p is a pointer, i an int64, u a uint64 or size_t.
_OF_CACHES = {
    "k_pages": "pip",
    "v_pages": "pip",
    "quantised": "pip",
    "add": "ppuupp",
    "fork": "pip",
    "free": "pi",
    "reserve": "piip",
    "commit": "pipu",
    "truncate": "pii",
    "move": "pipup",
    "swap_out": "pip",
    "swap_in": "pip",
    "get_sequence_info": "pip",
}
_CTYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "u": ctypes.c_uint64}
# Versioned structs that the library fills; it refuses unknown sizes.
_VERSIONED = {
    "attention_tensors": _structs.AttentionTensors,
    "quantised_kv": _structs.QuantisedKv,
    "attention_gradients": _structs.AttentionGradients,
    "attention_options": _structs.AttentionOptions,
    "run_options": _structs.RunOptions,
    "softmax_tensors": _structs.SoftmaxTensors,
    "softmax_backward_tensors": _structs.SoftmaxBackwardTensors,
    "softmax_options": _structs.SoftmaxOptions,
    "problem": _structs.Problem,
    "rope_options": _structs.RopeOptions,
    "kv_append_options": _structs.KvAppendOptions,
    "kv_append_tensors": _structs.KvAppendTensors,
    "merge_states_tensors": _structs.MergeStatesTensors,
    "sparq_options": _structs.SparqOptions,
    "sparq_tensors": _structs.SparqTensors,
    "sparq_append_tensors": _structs.SparqAppendTensors,
    "kv_cache_options": _structs.KvCacheOptions,
    "kv_batch": _structs.KvBatch,
    "model_options": _structs.ModelOptions,
    "session_options": _structs.SessionOptions,
    "sampling_options": _structs.SamplingOptions,
    "generation_options": _structs.GenerationOptions,
    "engine_options": _structs.EngineOptions,
    "request": _structs.Request,
}


def find() -> pathlib.Path:
    """The file to load: HEADRACE_LIBRARY if it is set and not empty, else the one inside the package."""
    named = os.environ.get("HEADRACE_LIBRARY")
    if named:
        return pathlib.Path(named)
    folders = [pathlib.Path(folder) for folder in sys.modules[__package__].__path__]
    for folder in folders:
        if (folder / _FILE).is_file():
            return folder / _FILE
    raise ImportError(
        f"headrace: no {_FILE} in {' or '.join(map(str, folders))}: install the package (pip install .), "
        "or set HEADRACE_LIBRARY to the library of a build (build/release/src/libheadrace.so)"
    )


def _declare(library: ctypes.CDLL) -> None:
    for name, result in _RESULTS.items():
        getattr(library, f"headrace_{name}").restype = result
    for name, count in _POINTERS.items():
        getattr(library, f"headrace_{name}").argtypes = [ctypes.c_void_p] * count
    for name, letters in _OF_CACHES.items():
        getattr(library, f"headrace_kv_cache_{name}").argtypes = [_CTYPES[letter] for letter in letters]
    for name in _VERSIONED:
        getattr(library, f"headrace_{name}_init_sized").argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.headrace_cuda_info.argtypes = [ctypes.c_int32, ctypes.c_void_p]
    library.headrace_device_from_text.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.headrace_plan_predict.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.headrace_prediction_get_part.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.headrace_tuning_parse.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
    ]  # fmt: skip
    library.headrace_check.argtypes = [ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p]
    run: list[Any] = [ctypes.c_void_p] * 4 + [ctypes.c_size_t, ctypes.c_void_p]
    library.headrace_attention_forward.argtypes = run[1:]
    library.headrace_sparq_attention.argtypes = run[1:]
    library.headrace_attention_backward.argtypes = run
    _declare_models(library)


def _declare_models(library: ctypes.CDLL) -> None:
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    filled: list[Any] = [pointer, size, pointer]  # an array, its capacity, the count
    library.headrace_random_model_load.argtypes = [pointer, ctypes.c_char_p, ctypes.c_uint64, pointer, pointer]
    library.headrace_model_shape_name.argtypes = [ctypes.c_int64]
    library.headrace_tokenize.argtypes = [pointer, ctypes.c_char_p, size, ctypes.c_uint32, *filled]
    library.headrace_detokenize.argtypes = [pointer, pointer, size, *filled]
    library.headrace_chat_tokens.argtypes = [pointer, ctypes.c_char_p, pointer, size, ctypes.c_int, *filled]
    library.headrace_session_append.argtypes = [pointer, pointer, size, pointer]
    library.headrace_session_generate_n.argtypes = [pointer, pointer, ctypes.c_int64, pointer, pointer, pointer]
    library.headrace_engine_abort.argtypes = [pointer, ctypes.c_int64]
    library.headrace_completions_get.argtypes = [pointer, ctypes.c_int64, pointer]


def _check_structs(library: ctypes.CDLL, path: pathlib.Path) -> None:
    """A newer library may have longer structs; an older one cannot read ours."""
    for name, struct in _VERSIONED.items():
        if getattr(library, f"headrace_{name}_init_sized")(ctypes.byref(struct()), ctypes.sizeof(struct)):
            text = library.headrace_last_error().decode("utf-8", "replace")
            raise ImportError(
                f"headrace: {path} is older than this package, {text}: install both from one version"
            )


def load(path: pathlib.Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        _declare(library)
    except (OSError, AttributeError) as error:
        raise ImportError(f"headrace: {path} could not be loaded: {error}; install a matching library") from error
    _check_structs(library, path)
    return library


PATH = find()
LIBRARY = load(PATH)
VERSION: str = LIBRARY.headrace_version().decode()


class BusyError(RuntimeError):
    """A queue is full. The same call succeeds later."""


_EXCEPTIONS: dict[int, type[Exception]] = {
    _structs.INVALID_ARGUMENT: ValueError,
    _structs.UNSUPPORTED: NotImplementedError,
    _structs.OUT_OF_MEMORY: MemoryError,
    _structs.BUSY: BusyError,
}


# C terms of the library's messages and their Python equivalents.
_IN_PYTHON = {
    "NaN for the default head_dim^-0.5": "None for the default head_dim ** -0.5",
    "set it in the options of a ragged batch": "pass it with cu_seqlens",
}


def fail(status: int) -> NoReturn:
    """Raises the library's last error on this thread."""
    text = LIBRARY.headrace_last_error().decode("utf-8", "replace")
    for phrase, in_python in _IN_PYTHON.items():
        text = text.replace(phrase, in_python)
    raise _EXCEPTIONS.get(status, RuntimeError)(text)


def check(status: int) -> None:
    if status != _structs.OK:
        fail(status)
