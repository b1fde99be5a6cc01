"""Direct calls of the library for tensors with memory: no dispatcher, no copy of the arguments.

The key of a call is everything it depends on except addresses; what follows from the key is built once, in an Entry.
Half a microsecond matters here, so compute() inlines code that would otherwise be functions.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

import torch
from torch.autograd import forward_ad, profiler

from .. import _plans, _structs
from .._arguments import EXTRA_NAMES, lse_shape, probs_shape, swapped_heads
from .._library import fail
from .._plans import Options, Plan, View, scratch
from .._structs import DATA_WORD
from .._views import row_major
from ._tensors import refuse_opaque

_DTYPES = {
    torch.float32: _structs.F32,
    torch.float16: _structs.F16,
    torch.bfloat16: _structs.BF16,
    torch.float64: _structs.F64,
    torch.int32: _structs.I32,
    torch.uint32: _structs.U32,
    torch.bool: _structs.BOOL,
}
CODES = {  # of k and v alone
    torch.int8: _structs.I8,
    torch.uint8: _structs.I4X2,  # two codes in a byte
    torch.float8_e4m3fn: _structs.F8E4M3,
}
_Q, _K, _V, _OUT, _LSE, _PROBS = (DATA_WORD[name] for name in ("q", "k", "v", "out", "lse", "probs"))
_EXTRA_WORDS = tuple(DATA_WORD[name] for name in EXTRA_NAMES)
Extras = tuple[Optional[torch.Tensor], ...]  # in the order of EXTRA_NAMES
NO_EXTRAS: Extras = (None,) * len(EXTRA_NAMES)


def extras_of(**given: torch.Tensor | None) -> Extras:
    return tuple([given.get(name) for name in EXTRA_NAMES])


_empty, _empty_like = torch.empty, torch.empty_like
_num_threads = torch.get_num_threads
_is_compiling = torch.compiler.is_compiling
_num_dispatch_modes = torch._C._len_torch_dispatch_stack
_num_function_modes = torch._C._len_torch_function_stack
_has_functorch = torch._C._are_functorch_transforms_active
_is_any_autocast = torch._C._is_any_autocast_enabled
_tracing_state = torch._C._get_tracing_state


def is_watched_by_keys() -> bool:
    """The part of is_watched() that shows in the dispatch keys."""
    return bool(_num_dispatch_modes() or _has_functorch() or _is_any_autocast() or _tracing_state())


def is_watched() -> bool:
    """Whether anything observes or rewrites operators: compiler, modes, transforms, autocast, tracer, forward-mode
    differentiation, profiler."""
    return bool(
        _is_compiling()
        or _num_function_modes()
        or _num_dispatch_modes()
        or _has_functorch()
        or _is_any_autocast()
        or _tracing_state()
        or forward_ad._current_level >= 0
        or profiler._is_profiler_enabled
    )


def _public_raw_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _public_raw_stream)


def view_of(name: str, tensor: torch.Tensor, heads_first: bool = False) -> View:
    refuse_opaque((name,), (tensor,))
    code = _DTYPES.get(tensor.dtype)
    if code is None and name in ("k", "v"):
        code = CODES.get(tensor.dtype)
    if code is None:
        raise ValueError(
            f"{name}.dtype={tensor.dtype}: must be float32, float16, bfloat16 or float64 (int32, uint32 or bool for "
            f"lengths and masks); convert {name}"
        )
    if name == "tree_mask" and code == _structs.I32:
        code = _structs.U32  # bit-identical
    if tensor.is_cuda:
        device_type, device_id = _structs.CUDA, tensor.get_device()
    elif tensor.device.type == "cpu":
        device_type, device_id = _structs.CPU, 0
    else:
        raise NotImplementedError(
            f"{name} is on {tensor.device}: headrace has kernels for the CPU and CUDA; move {name} to one of them"
        )
    shape, strides = tuple(tensor.shape), tensor.stride()
    if heads_first:
        shape, strides = swapped_heads(shape), swapped_heads(strides)
    return View(tensor.data_ptr(), code, device_type, device_id, shape, strides)


def out_layout(
    q: torch.Tensor, v: torch.Tensor, heads_first: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of out: contiguous; for [batch, heads, seqlen, dim] with the axis order of q in memory."""
    shape = (*q.shape[:-1], v.shape[-1] * (2 if v.dtype == torch.uint8 else 1))
    if not heads_first or len(shape) != 4 or q.stride(1) >= q.stride(2):
        return shape, row_major(shape)
    return shape, swapped_heads(row_major(swapped_heads(shape)))


class Entry:
    """Everything that follows from a key."""

    __slots__ = (
        "blocks", "device", "has_one_column", "heads_first", "is_cpu", "is_out_like_q", "lse", "options", "out",
        "plan", "probs", "result_dtype", "run_function", "workspace_bytes",
    )  # fmt: skip

    def __init__(self, plan: Plan, q: torch.Tensor) -> None:
        self.plan = plan
        self.blocks = plan.blocks
        self.run_function = plan.run_function
        self.workspace_bytes = plan.workspace_bytes
        self.is_cpu = not q.is_cuda
        self.device = q.device
        self.has_one_column = False  # a head_dim is 1
        self.result_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.options: tuple = ()
        self.heads_first = False
        self.out: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self.is_out_like_q = False
        self.lse: torch.Tensor | None = None  # has lse's shape, without memory of its own
        self.probs: tuple[int, ...] | None = None


@functools.cache
def _one_element(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return _empty(1, dtype=dtype, device=device)


def without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Copies if the last axis is not contiguous, like the functions of flash-attn and PyTorch."""
    has_gaps = tensor.dim() > 0 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1
    return tensor.contiguous() if has_gaps else tensor


def _make_entry(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extras: Extras | None,
    options: tuple,
    heads_first: bool,
    with_lse: bool,
    with_probs: bool,
    num_threads: int,
    out_strides: tuple[int, ...] | None,
) -> Entry:
    views = {name: view_of(name, t, heads_first) for name, t in (("q", q), ("k", k), ("v", v))}
    views.update({n: view_of(n, t) for n, t in zip(EXTRA_NAMES, extras or NO_EXTRAS, strict=True) if t is not None})
    view = views["q"]
    out = out_layout(q, v, heads_first) if q.dim() and v.dim() else ((), ())
    if out_strides is not None:
        out = (out[0], out_strides)
    shapes = {"out": (view.dtype, *out)}
    code = _structs.F64 if view.dtype == _structs.F64 else _structs.F32
    lse = lse_shape(view.shape, "cu_seqlens_q" in views) if with_lse else None
    probs = probs_shape(view.shape, views["k"].shape) if with_probs else None
    if lse is not None:
        shapes["lse"] = (code, lse, row_major(lse))
    if probs is not None:
        shapes["probs"] = (code, probs, row_major(probs))
    # Planning needs output addresses before allocation: use fake ones, beyond all inputs and disjoint.
    address = 1 << 62
    for name, (dtype, shape, strides) in shapes.items():
        if name == "out" and heads_first:
            shape, strides = swapped_heads(shape), swapped_heads(strides)
        views[name] = View(address, dtype, view.device_type, view.device_id, shape, strides)
        address += 1 << 60
    entry = Entry(_plans.make(views, Options(*options), num_threads), q)
    entry.out, entry.probs = out, probs
    if len(out[0]) == q.dim():  # empty_like() is the cheapest way to create a tensor
        entry.is_out_like_q = out[0] == q.shape and out[1] == _empty_like(q).stride()
    if lse is not None:
        entry.lse = _one_element(entry.result_dtype, q.device).expand(lse)
    entry.options, entry.heads_first = options, heads_first
    entry.has_one_column = q.shape[-1] == 1 or v.shape[-1] == 1
    return entry


def layouts_of(tensors: tuple[torch.Tensor | None, ...]) -> tuple:
    return tuple([None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors])


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extras: Extras | None,
    options: tuple,
    heads_first: bool,
    with_lse: bool,
    with_probs: bool,
    out_strides: tuple[int, ...] | None = None,
) -> tuple[Entry, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The arguments of compute(); q, k and v are copied if the library cannot read them in place. `options` has the
    values of Options, in its order."""
    device = q.get_device()
    threads = _num_threads() if device < 0 else 0
    key = (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype, device,
        k.get_device(), v.get_device(), options, heads_first, with_lse, with_probs, threads, out_strides,
        (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15, None if extras is None else layouts_of(extras),
    )  # fmt: skip
    try:
        entry = _plans.get(key)
    except TypeError:  # an option is unhashable
        entry = None
    if entry is None:
        numbers = _plans.numbers_of(options)
        if numbers is not options:
            return prepare(q, k, v, extras, numbers, heads_first, with_lse, with_probs, out_strides)
        given, (q, k, v) = (q, k, v), map(without_gaps, (q, k, v))
        if not (q is given[0] and k is given[1] and v is given[2]):
            return prepare(q, k, v, extras, options, heads_first, with_lse, with_probs, out_strides)
        made = _make_entry(q, k, v, extras, options, heads_first, with_lse, with_probs, threads, out_strides)
        entry = _plans.keep(key, made)
    if entry.has_one_column and is_any_negated(q, k, v):
        q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
        return prepare(q, k, v, extras, options, heads_first, with_lse, with_probs, out_strides)
    return entry, q, k, v


def is_any_negated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether a tensor is a negated view, such as the imaginary part of a conjugated tensor. without_gaps() copies
    those unless they have one column."""
    return q.is_neg() or k.is_neg() or v.is_neg()


def compute(
    entry: Entry,
    q: torch.Tensor,
    q_data: int,
    k_data: int,
    v_data: int,
    lse: torch.Tensor | None = None,
    probs: torch.Tensor | None = None,
    extras: Extras | None = None,
    dropout_state: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns out; writes lse and probs."""
    out = _empty_like(q) if entry.is_out_like_q else q.new_empty_strided(*entry.out)
    blocks = entry.blocks
    try:
        block = blocks.pop()
    except IndexError:
        block = entry.plan.take_block()
    words = block.words
    words[_Q] = q_data
    words[_K] = k_data
    words[_V] = v_data
    words[_OUT] = out.data_ptr()
    if lse is not None:
        words[_LSE] = lse.data_ptr()
    if probs is not None:
        words[_PROBS] = probs.data_ptr()
    if extras is not None:
        write_extras(words, extras)
    if dropout_state is not None:
        set_dropout(block, dropout_state)
    if block.scratch_token is not scratch.token:
        run(entry, block)
        return out
    status = entry.run_function(*block.arguments)  # run(), inlined for a CPU block that this thread used last
    blocks.append(block)
    if status:
        fail(status)
    return out


def write_extras(words: memoryview, extras: Extras) -> None:
    for word, tensor in zip(_EXTRA_WORDS, extras):
        if tensor is not None:
            words[word] = tensor.data_ptr()


def set_dropout(block: _plans.Block, state: torch.Tensor) -> None:
    block.set_dropout(*(n & 0xFFFFFFFFFFFFFFFF for n in state.tolist()))


def results_of(
    entry: Entry,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extras: Extras | None,
    dropout_state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """out, lse and probs; lse and probs are None if the entry has none."""
    lse = None if entry.lse is None else _empty_like(entry.lse)
    probs = None if entry.probs is None else _empty(entry.probs, dtype=entry.result_dtype, device=entry.device)
    out = compute(entry, q, q.data_ptr(), k.data_ptr(), v.data_ptr(), lse, probs, extras, dropout_state)
    return out, lse, probs


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    extras: Extras | None,
    options: tuple,
    dropout_state: torch.Tensor | None,
    heads_first: bool,
    with_lse: bool,
    with_probs: bool,
    out_strides: tuple[int, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """out, lse, probs (None if not requested); arguments as for prepare()."""
    entry, q, k, v = prepare(q, k, v, extras, options, heads_first, with_lse, with_probs, out_strides)
    return results_of(entry, q, k, v, extras, dropout_state)


def run(entry: Entry, block: _plans.Block) -> None:
    """On a GPU: runs on the current stream, with scratch memory from PyTorch's stream- and graph-aware allocator."""
    if entry.is_cpu:
        entry.plan.run_on_cpu(block)
        return
    stream = _raw_stream(entry.device.index)
    if entry.workspace_bytes == 0:
        entry.plan.run(block, None, stream)
        return
    workspace = _empty(entry.workspace_bytes, dtype=torch.uint8, device=entry.device)
    entry.plan.run(block, workspace.data_ptr(), stream)


def empty_results(like: torch.Tensor) -> torch.Tensor:
    """A placeholder for results that were not requested: operators must return a tensor."""
    return _empty(0, dtype=torch.float32, device=like.device)
