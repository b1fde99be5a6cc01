"""attention, explain, supports and check on arrays."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from . import _devices, _plans, _structs, _views
from ._arguments import (
    EXTRA_NAMES, dropout_words, is_heads_first, lse_shape, make_options, out_shape, probs_shape, refuse_probs_of_pages,
    swapped_heads,
)  # fmt: skip
from ._library import LIBRARY, check as check_status
from ._plans import Options, Support, View
from ._views import TensorSpec, is_torch

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._arguments import Numbers

    class _Options(Numbers, total=False):
        alibi_slopes: Any
        bias: Any
        mask: Any
        tree_mask: Any
        sinks: Any
        dropout_seed: int
        cu_seqlens_q: Any
        cu_seqlens_k: Any
        block_table: Any
        page_indptr: Any
        seqused_k: Any
        k_scale: Any
        v_scale: Any
        k_recent: Any
        v_recent: Any
        recent_table: Any
        out: Any
        stream: int | None


def _cupy_of(array: Any) -> Any:
    """The module cupy if the array is a CuPy array."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else None


def _current_stream(array: Any) -> int | None:
    """The current stream of the array's own library, if it has one."""
    cupy = _cupy_of(array)
    return _views.stream_of(array) if cupy is None else cupy.cuda.get_current_stream(array.device.id).ptr


def _heads_first_view(view: View) -> View:
    return view._replace(shape=swapped_heads(view.shape), strides=swapped_heads(view.strides))


def _max_seqlen(name: str, given: int | None, cu_seqlens: Any) -> int | None:
    """The given bound, else the longest sequence of cu_seqlens if the host can read them."""
    if given is not None or cu_seqlens is None:
        return given
    if isinstance(cu_seqlens, TensorSpec) or not _views.is_on_host(cu_seqlens):
        raise ValueError(
            f"max_seqlen_{name}: not given; pass the longest sequence (cu_seqlens_{name} is not in host memory)"
        )
    lengths = np.diff(cu_seqlens if isinstance(cu_seqlens, np.ndarray) else np.from_dlpack(cu_seqlens))
    return int(lengths.max(initial=0))


def options_of_call(extras: dict[str, Any], arguments: dict[str, Any]) -> Options:
    for side in ("q", "k"):
        name = f"max_seqlen_{side}"
        arguments[name] = _max_seqlen(side, arguments[name], extras[f"cu_seqlens_{side}"])
    return make_options(**arguments)


class Call:
    """Inputs and outputs of one call as views. A call with gradients is a backward."""

    def __init__(self, stream: int | None, heads_first: bool) -> None:
        self.stream = stream
        self.heads_first = heads_first
        self.views: dict[str, View] = {}
        self.gradients: dict[str, View] = {}
        self.owners: list[Any] = []

    def add(self, name: str, array: Any, is_output: bool = False) -> None:
        self.views[name] = self._view(name, array, is_output, name)

    def add_gradient(self, name: str, array: Any, is_output: bool = False) -> None:
        self.gradients[name] = self._view(name, array, is_output, name.removeprefix("d"))

    def _view(self, name: str, array: Any, is_output: bool, layout_of: str) -> View:
        borrowed = _views.of(name, array, self.stream, is_output)
        self.owners.append(borrowed.owner)
        return _heads_first_view(borrowed.view) if self._is_swapped(layout_of) else borrowed.view

    def _is_swapped(self, name: str) -> bool:
        return self.heads_first and name in ("q", "k", "v", "out")

    def shape_of(self, name: str) -> tuple[int, ...]:
        """In the caller's layout."""
        shape = self.views[name].shape
        return swapped_heads(shape) if self._is_swapped(name) else shape

    def run(self, options: Options, seed: int, offset: int) -> None:
        views, gradients = self.views, self.gradients
        alignment = 0
        for view in (*map(views.__getitem__, ("q", "k", "v", "out")), *gradients.values()):
            alignment |= view.data
        options = _plans.numbers_of(options)
        layouts = tuple((name, view[1:]) for group in (views, gradients) for name, view in group.items())
        key = (options, alignment % _structs.WHOLE_ALIGNMENT, layouts)
        plan = _plans.get(key) or _plans.keep(key, _plans.make(views, options, gradients=gradients or None))
        block = plan.take_block()
        for name, view in views.items():
            block.words[_structs.DATA_WORD[name]] = view.data
        for name, view in gradients.items():
            block.gradient_words[_structs.GRADIENT_WORD[name]] = view.data
        block.set_dropout(*dropout_words(seed, offset))
        if views["q"].device_type == _structs.CPU:
            plan.run_on_cpu(block)
        elif plan.workspace_bytes:
            plan.run_alone(block, self.stream)
        else:
            plan.run(block, None, self.stream)


def new_call(
    q: Any, k: Any, v: Any, extras: dict[str, Any], stream: int | None, layout: str
) -> Call:
    call = Call(_current_stream(q) if stream is None else stream, is_heads_first(layout))
    for name, array in (("q", q), ("k", k), ("v", v), *extras.items()):
        if array is not None or name in ("q", "k", "v"):
            call.add(name, array)
    return call


def new_output(name: str, like: Any, view: View, shape: tuple[int, ...], code: int) -> Any:
    """A new array of `shape` from the library of `like`."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, _views.numpy_dtype(code))
    cupy = _cupy_of(like)
    if cupy is not None:
        with like.device:
            return cupy.empty(shape, _views.numpy_dtype(code))
    if view.device_type == _structs.CPU:
        return np.empty(shape, _views.numpy_dtype(code))
    raise ValueError(
        f"{name}: must be given for a {type(like).__name__} on a GPU (headrace allocates only CuPy and PyTorch "
        f"arrays); pass {name}, or pass PyTorch tensors"
    )


@overload
def attention(
    q: Any, k: Any, v: Any, *, return_lse: Literal[True], return_probs: Literal[False] = ..., lse: Any = ...,
    probs: None = ..., **options: Unpack[_Options],
) -> tuple[Any, Any]: ...  # fmt: skip
@overload
def attention(
    q: Any, k: Any, v: Any, *, return_lse: Literal[False] = ..., return_probs: Literal[True], lse: None = ...,
    probs: Any = ..., **options: Unpack[_Options],
) -> tuple[Any, Any]: ...  # fmt: skip
@overload
def attention(
    q: Any, k: Any, v: Any, *, return_lse: Literal[True], return_probs: Literal[True], lse: Any = ...,
    probs: Any = ..., **options: Unpack[_Options],
) -> tuple[Any, Any, Any]: ...  # fmt: skip
@overload
def attention(
    q: Any, k: Any, v: Any, *, return_lse: bool = ..., return_probs: bool = ..., lse: Any = ..., probs: Any = ...,
    **options: Unpack[_Options],
) -> Any: ...  # fmt: skip
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    softmax_scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    bias: Any = None,
    mask: Any = None,
    tree_mask: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    block_table: Any = None,
    page_indptr: Any = None,
    seqused_k: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    k_recent: Any = None,
    v_recent: Any = None,
    recent_table: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    num_splits: int = 0,
    strict_rows: bool = False,
    strict_fallback: bool = False,
    checked: bool = False,
    max_shared_prefix: int = 0,
    return_lse: bool = False,
    return_probs: bool = False,
    layout: str = "bshd",
    out: Any = None,
    lse: Any = None,
    probs: Any = None,
    stream: int | None = None,
) -> Any:
    """Exact attention of arrays: softmax(softmax_scale * q k^T + ...) v.

    Arrays are NumPy arrays (bfloat16 via ml_dtypes) or anything with DLPack or the CUDA array interface, all on one
    device. Nothing is copied. The last axis of q, k, v and out is contiguous, every other stride is free.

    Args:
        q: [batch, seqlen_q, num_heads, head_dim]; f32, f16, bf16 or f64. With layout="bhsd" q, k, v and out are
            [batch, heads, seqlen, dim]. Ragged (cu_seqlens given): [total_q, num_heads, head_dim].
        k: [batch, seqlen_k, num_kv_heads, head_dim]; query head h reads kv head h // (num_heads // num_kv_heads).
        v: [batch, seqlen_k, num_kv_heads, head_dim_v]; head dims are 1 to 576.
        softmax_scale: default head_dim ** -0.5.
        causal: True or "bottom-right": query i sees keys j <= i + seqlen_k - seqlen_q; "top-left": j <= i.
        window: (left, right), keys visible left and right of the diagonal, inclusive; -1 or None: open.
        softcap: c > 0 turns a score s into c * tanh(s / c); 0: none.
        alibi_slopes: f32 [num_heads] or [batch, num_heads]. sinks: f32 [num_heads], logits that join the denominator.
        bias: added to scores; dtype of q or f32; [batch, num_heads, seqlen_q, seqlen_k], any axis may be 1;
            ragged [num_heads, total_q, max_seqlen_k].
        mask: bool, True = keep; shaped like bias.
        tree_mask: u32 [batch, seqlen_q, words]: bit j of row i: query i sees key seqlen_k - seqlen_q + j.
        dropout_p, dropout_seed, dropout_offset: equal values give the same dropout mask on every device.
        cu_seqlens_q, cu_seqlens_k: i32 [batch + 1], for a ragged batch. max_seqlen_q, max_seqlen_k: upper bounds of
            its lengths; computed from cu_seqlens if these are in host memory.
        block_table: i32 [batch, max_pages]: key j of sequence b is slot j % page_size of page
            block_table[b, j // page_size]. k and v are then [num_pages, page_size, num_kv_heads, dim] (with
            layout="bhsd" [num_pages, num_kv_heads, page_size, dim]), cu_seqlens_k is absent, and max_seqlen_k is
            optional. Needs seqused_k.
        page_indptr: i32 [batch + 1]: block_table is then [num_entries], and its entries page_indptr[b] to
            page_indptr[b + 1] - 1 are the pages of sequence b (FlashInfer's kv_indptr and kv_indices). Pass
            max_seqlen_k, which is else num_entries * page_size; then block_table may be longer than it is used.
        seqused_k: i32 [batch]: the keys of each sequence that are used; those behind them may hold anything.
        k_scale, v_scale: of quantised k and v, whose arrays are codes: int8, float8_e4m3fn (ml_dtypes), or uint8 with
            two 4-bit codes of values -8 to 7 in a byte, [.., dim / 2]. f32, one for each key and head (the shape of k
            without its last axis) or for each sequence and head, [batch, num_kv_heads]. k and v are chosen apart.
        k_recent, v_recent, recent_table: with codes in pages, the newest keys unquantised, dtype of q,
            [num_recent_pages, group, num_kv_heads, dim], and i32 [batch, max_recent], their pages from the group of a
            sequence's first query on: a query sees its own group there and earlier groups as codes. See KvCache.
        num_splits: key splits; 0: by the sequence's own lengths. strict_rows: a row's bits do not depend on seqlen_q.
        strict_fallback: fail (NotImplementedError) rather than use the slow fallback with a FallbackWarning.
        checked: validate lengths on a GPU on the host first (synchronizes).
        max_shared_prefix: with block_table, keys that neighbouring sequences may share, read once with the same bits.
        return_lse: also return the lse, f32 [batch, num_heads, seqlen_q] (ragged [num_heads, total_q]), natural log.
        return_probs: also return the probabilities, f32 [batch, num_heads, seqlen_q, seqlen_k]; for small shapes.
        out, lse, probs: output arrays, shapes as returned; lse and probs f32 (f64 for f64 inputs). Default: new
            NumPy or CuPy arrays. Not allowed with PyTorch tensors, which headrace.torch.attention handles.
        stream: a cudaStream_t as an int; default: CuPy's current stream, the stream in q's CUDA array interface,
            else CUDA's default stream. Pending work on DLPack arrays finishes first.

    Returns:
        out [batch, seqlen_q, num_heads, head_dim_v]; if lse or probs are requested or given, a tuple (out, lse, probs)
        without the other one. A row that sees no key is 0 and its lse -inf.

    Raises:
        ValueError: an invalid argument; the message names it, its value, the rule and the remedy.
        NotImplementedError: valid, but no kernel of this build and device supports it; the message says why.
        MemoryError, RuntimeError: out of host memory; a device error.
        TypeError: an argument is not an array.
    """
    given = (
        cu_seqlens_q, cu_seqlens_k, alibi_slopes, bias, mask, tree_mask, sinks, block_table, page_indptr, seqused_k,
        k_scale, v_scale, k_recent, v_recent, recent_table,
    )  # fmt: skip
    extras = dict(zip(EXTRA_NAMES, given, strict=True))
    arguments: dict[str, Any] = {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": window,
        "softcap": softcap,
        "dropout_p": dropout_p,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        "num_splits": num_splits,
        "strict_rows": strict_rows,
        "strict_fallback": strict_fallback,
        "checked": checked,
        "max_shared_prefix": max_shared_prefix,
    }
    if is_torch(q):
        if not (out is lse is probs is stream is None):
            raise ValueError(
                "out, lse, probs and stream: must not be given with PyTorch tensors, whose results are new tensors on "
                "the current stream; leave them out"
            )
        from .torch import attention as torch_attention

        return torch_attention(
            q, k, v, **extras, **arguments, dropout_seed=dropout_seed, dropout_offset=dropout_offset,
            return_lse=return_lse, return_probs=return_probs, layout=layout,
        )  # fmt: skip
    call = new_call(q, k, v, extras, stream, layout)
    outputs = {"out": (out, True), "lse": (lse, return_lse), "probs": (probs, return_probs)}
    results = _add_outputs(call, q, outputs)
    call.run(options_of_call(extras, arguments), dropout_seed, dropout_offset)
    return results[0] if len(results) == 1 else tuple(results)


def _new_result(name: str, call: Call, like: Any) -> Any:
    q, k = call.views["q"], call.views["k"]
    if name == "probs":
        refuse_probs_of_pages(call.views.get("block_table"))
    if name == "out":
        shape = out_shape(call.shape_of("q"), call.shape_of("v"), call.views["v"].dtype)
        return new_output(name, like, q, shape, q.dtype)
    is_ragged = "cu_seqlens_q" in call.views
    shape = lse_shape(q.shape, is_ragged) if name == "lse" else probs_shape(q.shape, k.shape)
    return new_output(name, like, q, shape, _structs.F64 if q.dtype == _structs.F64 else _structs.F32)


def _add_outputs(call: Call, like: Any, outputs: dict[str, tuple[Any, bool]]) -> list[Any]:
    """`outputs`: the given array (or None), and whether to allocate one if none is given."""
    results = []
    for name, (array, is_wanted) in outputs.items():
        if array is None and is_wanted:
            array = _new_result(name, call, like)
        if array is not None:
            call.add(name, array, is_output=True)
            results.append(array)
    return results


# ---- without running anything ----


def _spec_of(name: str, tensor: Any) -> TensorSpec:
    if isinstance(tensor, TensorSpec):
        return tensor
    if is_torch(tensor):
        from .torch._eager import view_of

        view = view_of(name, tensor)
    else:
        view = _views.of(name, tensor, _views.NO_STREAM).view
    return TensorSpec(view.shape, _structs.DTYPE_NAMES[view.dtype], view.strides)


def _device_of(tensor: Any) -> _structs.DeviceInfo:
    if isinstance(tensor, TensorSpec):
        return _devices.of_tensors(_structs.CPU, 0, 0)
    if is_torch(tensor):
        return _devices.of_tensors(_structs.CUDA if tensor.is_cuda else _structs.CPU, max(tensor.get_device(), 0), 0)
    view = _views.of("q", tensor, _views.NO_STREAM).view
    return _devices.of_tensors(view.device_type, view.device_id, 0)


def _plan_of(
    tensors: dict[str, Any],
    device: str | None,
    arguments: dict[str, Any],
    layout: str,
    lse: bool,
    probs: bool,
    backward: bool,
) -> _plans.Plan:
    heads_first = is_heads_first(layout)
    info = _device_of(tensors["q"]) if device is None else _devices.from_text(device)
    specs = {name: _spec_of(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    addresses = _views.SpecAddresses(info.device_type, info.device_id)

    def view_of(name: str, spec: TensorSpec, owner: str) -> View:
        view = addresses.view(name, spec)
        return _heads_first_view(view) if heads_first and owner in ("q", "k", "v") else view

    views = {name: view_of(name, spec, name) for name, spec in specs.items()}
    q, k, v = views["q"], views["k"], views["v"]
    code = _structs.DTYPE_NAMES[_structs.F64 if q.dtype == _structs.F64 else _structs.F32]
    outputs = {"out": TensorSpec(out_shape(q.shape, v.shape, v.dtype), _structs.DTYPE_NAMES[q.dtype])}
    if lse or backward:
        outputs["lse"] = TensorSpec(lse_shape(q.shape, "cu_seqlens_q" in views), code)
    if probs and not backward:
        refuse_probs_of_pages(specs.get("block_table"))
        outputs["probs"] = TensorSpec(probs_shape(q.shape, k.shape), code)
    views.update({name: addresses.view(name, spec) for name, spec in outputs.items()})
    gradients = None
    if backward:
        given = {**specs, **outputs}
        gradients = {
            f"d{name}": view_of(f"d{name}", given[name]._replace(strides=None), name)
            for name in ("q", "k", "v", "out", "bias", "sinks", *(["lse"] if lse else []))
            if name in given
        }
    options = options_of_call({name: tensors.get(name) for name in EXTRA_NAMES}, arguments)
    return _plans.Plan(views, options, info, is_quiet=True, gradients=gradients)


_QUESTION_DEFAULTS: dict[str, Any] = {
    "softmax_scale": None,
    "causal": False,
    "window": (-1, -1),
    "softcap": 0.0,
    "dropout_p": 0.0,
    "max_seqlen_q": None,
    "max_seqlen_k": None,
    "num_splits": 0,
    "strict_rows": False,
    "strict_fallback": False,
    "checked": False,
    "deterministic": False,
    "max_shared_prefix": 0,
}


def _question(q: Any, k: Any, v: Any, device: str | None, backward: bool, arguments: dict[str, Any]) -> _plans.Plan:
    tensors = {"q": q, "k": k, "v": v}
    tensors.update({name: arguments.pop(name, None) for name in EXTRA_NAMES})
    layout = arguments.pop("layout", "bshd")
    lse, probs = arguments.pop("return_lse", False), arguments.pop("return_probs", False)
    for name in ("dropout_seed", "dropout_offset"):
        arguments.pop(name, None)
    unknown = arguments.keys() - _QUESTION_DEFAULTS.keys()
    if unknown:
        raise TypeError(f"unknown argument {', '.join(sorted(unknown))}: the arguments are those of attention()")
    return _plan_of(tensors, device, {**_QUESTION_DEFAULTS, **arguments}, layout, lse, probs, backward)


def explain(q: Any, k: Any, v: Any, *, device: str | None = None, backward: bool = False, **arguments: Any) -> str:
    """Explains which kernel would run this call: the list of kernels with their reasons, the schedule, and what the
    call costs.

    Runs nothing and reads no elements.

    Args:
        q, k, v: arrays as attention() takes them, or TensorSpec(shape, dtype) without memory.
        device: "cpu", "cpu:avx512:16", "cuda:1", or a GPU that need not be present, "h200", "sm90:132"; default:
            that of q.
        backward: explain the backward instead: gradients of q, k, v, and of bias and sinks if given; with return_lse
            it also has a dlse.
        **arguments: those of headrace.torch.attention() and of attention(), except out, lse, probs and stream;
            tensors may be TensorSpecs.

    Raises:
        ValueError, NotImplementedError: as attention() would.
    """
    plan = _question(q, k, v, device, backward, arguments)
    return plan.text() + plan.prediction().text


def predict(
    q: Any, k: Any, v: Any, *, device: str | None = None, backward: bool = False, **arguments: Any
) -> _plans.Prediction:
    """How long this call will take, by a small model of its kernel. Arguments as for explain(); runs nothing.

    The ceilings are those that the library knows, of an H100 or H200, also with device="h200". (The program headrace
    explain also takes measured ones.) seconds is 0 where there is no model or no ceiling, and reason says why.
    """
    return _question(q, k, v, device, backward, arguments).prediction()


def supports(
    q: Any, k: Any, v: Any, *, device: str | None = None, backward: bool = False, **arguments: Any
) -> Support:
    """Whether a kernel of this build supports this call. Arguments as for explain().

    Returns:
        Support: truth value, .kernel, .is_fallback and .reason.

    Raises:
        ValueError: the arguments are invalid on any device.
    """
    try:
        plan = _question(q, k, v, device, backward, arguments)
    except NotImplementedError as error:
        return Support("", False, str(error))
    return Support(plan.kernel, plan.is_fallback, "")


def check(device: str = "cuda:0", stream: int | None = None) -> None:
    """Synchronizes with the stream, then raises ValueError if lengths on the device (cu_seqlens) were out of bounds
    since the last check. Kernels clamp such lengths to the buffers.

    Args:
        device: "cuda:N"; "cpu" always succeeds, because CPU calls validate lengths first.
        stream: a cudaStream_t as an int; default: CUDA's default stream.

    Raises:
        ValueError: lengths were out of bounds. RuntimeError: the device failed or is absent.
    """
    kind, _, number = device.partition(":")
    if kind not in _structs.DEVICE_NAMES or not (number or "0").isdecimal():
        raise ValueError(f"device={device!r}: must be 'cpu' or 'cuda:N'")
    check_status(LIBRARY.headrace_check(_structs.DEVICE_NAMES.index(kind), int(number or 0), stream))
