"""The plan cache, and the argument blocks that run plans.

A plan depends on shapes, strides, dtypes, devices, options, and the alignment of addresses. The argument block of each
such combination is packed once; later calls only write the addresses into it and run. A block belongs to one call at a
time: a call takes it from its plan's list and puts it back. Both operations are atomic, so threads never share a block.
"""

from __future__ import annotations

import ctypes
import math
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np

from . import _devices, _structs
from ._library import LIBRARY, check, fail

_MAX_PLANS = 4096


class Support:
    """Whether a kernel supports a problem. Truth value: supported.

    kernel: its name, "" if unsupported. is_fallback: it is the slow fallback. reason: why no kernel supports the call.
    """

    __slots__ = ("is_fallback", "kernel", "reason")

    def __init__(self, kernel: str, is_fallback: bool, reason: str) -> None:
        self.kernel = kernel
        self.is_fallback = is_fallback
        self.reason = reason

    def __bool__(self) -> bool:
        return bool(self.kernel)

    def __repr__(self) -> str:
        return f"Support(kernel={self.kernel!r}, is_fallback={self.is_fallback}, reason={self.reason!r})"


class FallbackWarning(UserWarning):
    """Only the slow fallback kernel supports this kind of problem; the message lists the reasons."""


class View(NamedTuple):
    """A borrowed tensor, as passed to the library. Strides are in elements."""

    data: int
    dtype: int
    device_type: int
    device_id: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Options(NamedTuple):
    """The options that a plan depends on, with the names and values of headrace_attention_options."""

    softmax_scale: float | None = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    window_left: int = -1
    window_right: int = -1
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    causal: int = _structs.CAUSAL_NONE
    num_splits: int = 0
    strict_fallback: bool = False
    strict_rows: bool = False
    checked: bool = False
    deterministic: bool = False
    max_shared_prefix: int = 0


_NUMBERS = frozenset((int, float, bool, type(None)))


def to_number(name: str, value: Any) -> Any:
    """A plain number; tensors and arrays of one element give their value."""
    if getattr(value, "requires_grad", False):
        raise ValueError(
            f"{name} requires a gradient: must be a number, which has no gradient; detach it, or multiply q by it"
        )
    if hasattr(value, "item"):
        try:
            value = value.item()
        except (RuntimeError, ValueError):
            raise ValueError(f"{name} is of shape {tuple(value.shape)}: must be a single number") from None
    if type(value) in _NUMBERS:
        return value
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name}={value!r}: must be a number")
    return int(value) if isinstance(value, int) else float(value)


def numbers_of(options: Any) -> Any:
    """Options as plain numbers: a tensor or array in a cache key could change."""
    if _NUMBERS.issuperset(map(type, options)):
        return options
    return Options(*map(to_number, Options._fields, options))


_INTEGERS = {
    name: ctype for name, ctype, *_ in _structs.AttentionOptions._fields_ if ctype in (ctypes.c_int32, ctypes.c_int64)
}


def _scale_for_c(scale: Any) -> Any:
    """C's NaN is Python's None."""
    if scale is None:
        return math.nan
    if isinstance(scale, float) and not math.isfinite(scale):
        raise ValueError(f"softmax_scale={scale}: must be finite; leave it None for the default head_dim ** -0.5")
    return scale


def pack_options(options: Options) -> _structs.AttentionOptions:
    struct = _structs.AttentionOptions(struct_size=ctypes.sizeof(_structs.AttentionOptions))
    for name, value in options._asdict().items():
        if name == "softmax_scale":
            value = _scale_for_c(value)
        ctype = _INTEGERS.get(name)
        if ctype is not None:
            value = to_integer(name, value, 8 * ctypes.sizeof(ctype))
        try:
            setattr(struct, name, value)
        except TypeError:
            raise TypeError(f"{name}={value!r}: must be a number") from None
    return struct


def to_integer(name: str, value: Any, bits: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}={value!r}: must be an integer") from None
    if number != value or not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError(f"{name}={value}: must be an integer of {bits} bits")
    return number


def pack_view(tensor: _structs.Tensor, name: str, view: View) -> None:
    rank = len(view.shape)
    if rank > _structs.MAX_RANK:
        raise ValueError(f"{name} has {rank} axes: must have at most {_structs.MAX_RANK}; reshape it")
    tensor.data = view.data
    tensor.dtype = view.dtype
    tensor.device_type = view.device_type
    tensor.device_id = view.device_id
    tensor.rank = rank
    tensor.shape[:rank] = view.shape
    tensor.strides[:rank] = view.strides


def _pack_views(struct: Any, views: dict[str, View]) -> Any:
    packed = struct(struct_size=ctypes.sizeof(struct))
    for name, view in views.items():
        pack_view(getattr(packed, name), name, view)
    return packed


def pack_tensors(views: dict[str, View]) -> _structs.AttentionCall:
    call = _structs.AttentionCall()
    call.tensors.struct_size = ctypes.sizeof(_structs.AttentionTensors)
    for name, view in views.items():
        if name in _structs.QUANTISED_NAMES:
            call.quantised.struct_size = ctypes.sizeof(_structs.QuantisedKv)
            pack_view(getattr(call.quantised, name), name, view)
        else:
            pack_view(getattr(call.tensors, name), name, view)
    call.point()
    return call


def _new_problem() -> _structs.Problem:
    return _structs.Problem(struct_size=ctypes.sizeof(_structs.Problem))


_pointer = ctypes.c_void_p.from_param  # ctypes' per-call argument conversion, done once
_size = ctypes.c_size_t.from_param


class Block:
    """The arguments of one call: tensors, gradients (backward only), options, and the run options of a plan.

    `words[DATA_WORD[name]]` is the address of tensor `name`, `gradient_words[GRADIENT_WORD[name]]` of a gradient.
    `arguments` are those of the plan's run_function, for the scratch memory identified by `scratch_token`.
    """

    __slots__ = (
        "_dropout", "_structs", "arguments", "gradient_words", "pointers", "run_pointers", "scratch_token", "words",
    )  # fmt: skip

    def __init__(self, *structs: Any) -> None:
        self._structs = structs
        run_options = _structs.RunOptions(struct_size=ctypes.sizeof(_structs.RunOptions))
        self._dropout = structs[-1], run_options
        self.pointers = tuple(_pointer(ctypes.addressof(struct)) for struct in structs)
        self.run_pointers = (*self.pointers[:-1], _pointer(ctypes.addressof(run_options)))
        self.words, self.gradient_words, *_ = (memoryview(struct).cast("B").cast("Q") for struct in structs)
        self.scratch_token: object = None
        self.arguments: tuple[Any, ...] = ()

    def copy(self) -> Block:
        copies = [type(struct).from_buffer_copy(struct) for struct in self._structs]
        copies[0].point()
        return Block(*copies)

    def set_dropout(self, seed: int, offset: int) -> None:
        for struct in self._dropout:
            struct.dropout_seed, struct.dropout_offset = seed, offset


class Prediction:
    """What a call costs, and the time that the model of its kernel predicts.

    seconds: 0 where there is no prediction; reason: why. flops, bytes, exps: what the call needs at least.
    num_tiles, num_slots, balance: work tiles, CTAs that are resident at the same time (or threads), and the mean work
    of a slot over that of the one that ends last. ctas, limit: resident CTAs of a multiprocessor, and what limits them.
    parts: seconds of each part; bound: the longest one. ceilings: where the rates of the device come from.
    text: all of it as lines.
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        info = _structs.PredictionInfo(ctypes.sizeof(_structs.PredictionInfo))
        check(LIBRARY.headrace_prediction_get(handle, ctypes.byref(info)))
        self.seconds, self.flops, self.bytes, self.exps = info.seconds, info.flops, info.bytes, info.exps
        self.num_tiles, self.num_slots, self.balance = info.num_tiles, info.num_slots, info.balance
        self.ctas, self.limit, self.bound = info.ctas, info.limit.decode(), info.bound.decode()
        self.ceilings, self.reason, self.text = info.ceilings.decode(), info.reason.decode(), info.text.decode()
        self.parts: dict[str, float] = {}
        for index in range(info.num_parts):
            part = _structs.PredictionPart(ctypes.sizeof(_structs.PredictionPart))
            check(LIBRARY.headrace_prediction_get_part(handle, index, ctypes.byref(part)))
            self.parts[part.name.decode()] = part.constant * part.unit_seconds

    def __repr__(self) -> str:
        return f"Prediction(seconds={self.seconds:.6g}, bound={self.bound!r}, reason={self.reason!r})"


class Plan:
    """A headrace_plan with its free argument blocks. With `gradients` it is a backward plan."""

    __slots__ = (
        "_destroy", "_first", "_handle_argument", "_one_call", "_size_argument", "blocks", "handle", "is_fallback",
        "kernel", "run_function", "workspace_bytes",
    )  # fmt: skip

    def __init__(
        self,
        views: dict[str, View],
        options: Options,
        device: _structs.DeviceInfo,
        is_quiet: bool = False,
        gradients: dict[str, View] | None = None,
    ) -> None:
        self.handle: int | None = None
        self._destroy = LIBRARY.headrace_plan_destroy
        structs = [pack_tensors(views), pack_options(options)]
        describe, run_function = LIBRARY.headrace_attention_problem, "headrace_plan_run"
        self._one_call = LIBRARY.headrace_attention_forward
        if gradients is not None:
            structs.insert(1, _pack_views(_structs.AttentionGradients, gradients))
            describe, run_function = LIBRARY.headrace_attention_backward_problem, "headrace_plan_run_backward"
            self._one_call = LIBRARY.headrace_attention_backward
        problem = _new_problem()
        check(describe(*map(ctypes.byref, structs), ctypes.byref(problem)))
        handle = ctypes.c_void_p()
        check(LIBRARY.headrace_plan_attention(ctypes.byref(problem), ctypes.byref(device), ctypes.byref(handle)))
        self.handle = handle.value
        self.workspace_bytes: int = LIBRARY.headrace_plan_workspace_bytes(handle)
        self.is_fallback = bool(LIBRARY.headrace_plan_is_fallback(handle))
        self.kernel: str = LIBRARY.headrace_plan_kernel(handle).decode()
        self.run_function = LIBRARY[run_function]  # without argtypes: arguments are converted already
        self._handle_argument, self._size_argument = _pointer(self.handle), _size(self.workspace_bytes)
        self._first = Block(*structs)
        self.blocks = [self._first.copy()]
        if self.is_fallback and not is_quiet:
            _warn_of_fallback(problem, device, self.text())

    def text(self) -> str:
        return LIBRARY.headrace_plan_explain(self.handle).decode()

    def prediction(self) -> Prediction:
        handle = ctypes.c_void_p()
        check(LIBRARY.headrace_plan_predict(self.handle, None, 0, ctypes.byref(handle)))
        try:
            return Prediction(handle)
        finally:
            LIBRARY.headrace_prediction_destroy(handle)

    def __del__(self) -> None:
        if self.handle is not None:
            self._destroy(self.handle)

    def take_block(self) -> Block:
        try:
            return self.blocks.pop()
        except IndexError:
            return self._first.copy()

    def _arguments(self, block: Block, workspace: int | None, stream: int | None) -> tuple[Any, ...]:
        return self._handle_argument, *block.run_pointers, _pointer(workspace), self._size_argument, _pointer(stream)

    def run(self, block: Block, workspace: int | None, stream: int | None) -> None:
        self._run(block, self._arguments(block, workspace, stream))

    def _run(self, block: Block, arguments: tuple[Any, ...]) -> None:
        status = self.run_function(*arguments)
        self.blocks.append(block)
        if status:
            fail(status)

    def run_alone(self, block: Block, stream: int | None) -> None:
        """Like run(), but the library allocates the workspace, stream-ordered on `stream`."""
        status = self._one_call(*block.pointers, None, 0, stream)
        self.blocks.append(block)
        if status:
            fail(status)

    def run_on_cpu(self, block: Block) -> None:
        if block.scratch_token is scratch.token:
            self._run(block, block.arguments)
            return
        if self.workspace_bytes > _KEPT_BYTES:
            memory = _allocate(self.workspace_bytes)
            self.run(block, memory.ctypes.data, None)
            return
        if self.workspace_bytes > scratch.num_bytes:
            scratch.grow(self.workspace_bytes)
        block.scratch_token, block.arguments = scratch.token, self._arguments(block, scratch.address, None)
        self._run(block, block.arguments)


# ---- the slow fallback warns once per kind of problem ----

_CLASS_FIELDS = (
    "phase dtype bias_dtype head_dim head_dim_v is_ragged has_alibi has_mask has_tree_mask has_sinks has_lse has_probs"
).split()
_warned: set[tuple] = set()


def _warn_of_fallback(problem: _structs.Problem, device: _structs.DeviceInfo, text: str) -> None:
    kind = (device.device_type, device.sm, device.cpu_isa, problem.softcap > 0, problem.dropout_p > 0)
    kind += tuple(getattr(problem, name) for name in _CLASS_FIELDS)
    if kind in _warned:
        return
    _warned.add(kind)
    warnings.warn(f"headrace: the slow fallback kernel was selected:\n{text}", FallbackWarning, stacklevel=5)


# ---- the cache ----

_kept: dict[Any, Any] = {}
_kept_lock = threading.Lock()
get = _kept.get


def _make_room() -> None:
    if len(_kept) >= _MAX_PLANS:  # drops the older half; a running call keeps its plan alive
        for old in list(_kept)[: _MAX_PLANS // 2]:
            del _kept[old]


def keep(key: Any, value: Any) -> Any:
    """Caches a plan, or an object that holds one, under the key. If two threads race, the first wins."""
    with _kept_lock:
        _make_room()
        return _kept.setdefault(key, value)


def replace(key: Any, value: Any) -> None:
    """keep(), but the last caller wins."""
    with _kept_lock:
        _make_room()
        _kept[key] = value


def make(
    views: dict[str, View], options: Options, num_threads: int = 0, gradients: dict[str, View] | None = None
) -> Plan:
    q = views["q"]
    device = _devices.of_tensors(q.device_type, q.device_id, num_threads)
    return Plan(views, options, device, gradients=gradients)


def cache_clear() -> None:
    """Drops all cached plans and devices, so that environment variables are read again."""
    with _kept_lock:
        _kept.clear()
        _warned.clear()
    _devices.of_tensors.cache_clear()


# ---- scratch memory on the CPU ----

_KEPT_BYTES = 64 << 20


def _allocate(num_bytes: int) -> np.ndarray:
    try:
        return np.empty(num_bytes, np.uint8)
    except MemoryError:
        raise MemoryError(f"workspace: {num_bytes} bytes could not be allocated; split the call") from None


class Scratch(threading.local):
    """Per-thread scratch memory. It grows by doubling and never shrinks, so an address stays valid during its call even
    if a finalizer that runs in between makes a call of its own. `token` is a distinct object for each thread and size,
    because a freed address may be reused."""

    def __init__(self) -> None:
        self.token = object()
        self.address: int | None = None
        self.num_bytes = 0
        self._memory: list[np.ndarray] = []

    def grow(self, num_bytes: int) -> None:
        memory = _allocate(max(num_bytes, 2 * self.num_bytes))
        self._memory.append(memory)
        self.token, self.address, self.num_bytes = object(), memory.ctypes.data, memory.nbytes


scratch = Scratch()
