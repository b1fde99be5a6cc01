"""softmax and its backward on arrays."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Literal, overload

from . import _plans, _structs, _views
from ._arrays import _current_stream, new_output
from ._library import LIBRARY, check
from ._views import Borrowed, is_torch

_ALGORITHMS = {"auto": _structs.SOFTMAX_AUTO, "safe": _structs.SOFTMAX_SAFE, "online": _structs.SOFTMAX_ONLINE}


def _stream_of(array: Any, stream: int | None) -> int | None:
    if stream is not None or not is_torch(array):
        return _current_stream(array) if stream is None else stream
    return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream if array.is_cuda else None


def _output(name: str, given: Any, like: Any, view: _plans.View, shape: tuple[int, ...], code: int) -> Any:
    if given is not None:
        return given
    if is_torch(like):
        raise ValueError(f"{name}: must be given for PyTorch tensors (headrace allocates only NumPy and CuPy arrays)")
    return new_output(name, like, view, shape, code)


def _options(axis: int, scale: float, algorithm: str) -> _structs.SoftmaxOptions:
    if algorithm not in _ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: must be one of {', '.join(map(repr, _ALGORITHMS))}")
    scale, axis = _plans.to_number("scale", scale), _plans.to_integer("axis", axis, 32)
    return _structs.SoftmaxOptions(ctypes.sizeof(_structs.SoftmaxOptions), scale, axis, _ALGORITHMS[algorithm])


def _run(function: Any, struct: type, borrowed: dict[str, Borrowed], options: Any, stream: int | None) -> None:
    tensors = struct(ctypes.sizeof(struct))
    for name, one in borrowed.items():
        _plans.pack_view(getattr(tensors, name), name, one.view)
    check(function(ctypes.addressof(tensors), ctypes.addressof(options), stream))


@overload
def softmax(
    x: Any, axis: int = ..., *, scale: float = ..., algorithm: str = ..., return_lse: Literal[True], out: Any = ...,
    lse: Any = ..., stream: int | None = ...,
) -> tuple[Any, Any]: ...  # fmt: skip
@overload
def softmax(
    x: Any, axis: int = ..., *, scale: float = ..., algorithm: str = ..., return_lse: bool = ..., out: Any = ...,
    lse: Any = ..., stream: int | None = ...,
) -> Any: ...  # fmt: skip
def softmax(
    x: Any,
    axis: int = -1,
    *,
    scale: float = 1.0,
    algorithm: str = "auto",
    return_lse: bool = False,
    out: Any = None,
    lse: Any = None,
    stream: int | None = None,
) -> Any:
    """softmax(scale * x) along one axis: exp(scale * x - lse), with lse = log(sum(exp(scale * x))).

    Arrays are NumPy arrays (bfloat16 via ml_dtypes) or anything with DLPack or the CUDA array interface, all on one
    device, any strides. Nothing is copied. "online": Milakov, Gimelshein, "Online normalizer calculation for softmax",
    2018.

    Args:
        x: 1 to 6 axes of any size; f32, f16 or bf16.
        axis: the softmax axis; negative values count from the end.
        scale: multiplies x; any sign.
        algorithm: "safe": maximum, sum and results in three passes; "online": maximum and sum in one pass; "auto": the
            faster one for the device and the length of the axis.
        return_lse: also return the lse.
        out: output array, shape and dtype of x; may be x itself. Default: a new NumPy or CuPy array.
        lse: output array for the lse, f32, the shape of x without the axis; default with return_lse: a new array.
        stream: a cudaStream_t as an int; default: the current stream of CuPy or PyTorch, the stream in x's CUDA array
            interface, else CUDA's default stream.

    Returns:
        out, or (out, lse) with return_lse or lse. A row of only -inf gives 0 and an lse of -inf; a row with NaN or
        +inf gives NaN.

    Raises:
        ValueError: an invalid argument; the message names it, its value, the rule and the remedy.
        NotImplementedError: no kernel of this build and device supports the call.
        MemoryError, RuntimeError: out of host memory; a device error.
        TypeError: an argument is not an array.
    """
    stream = _stream_of(x, stream)
    options = _options(axis, scale, algorithm)
    borrowed = {"x": _views.of("x", x, stream)}
    view = borrowed["x"].view
    out = _output("out", out, x, view, view.shape, view.dtype)
    borrowed["y"] = _views.of("out", out, stream, is_output=True)
    if return_lse and lse is None:
        at = options.axis % max(len(view.shape), 1)
        lse = _output("lse", None, x, view, view.shape[:at] + view.shape[at + 1 :], _structs.F32)
    if lse is not None:
        borrowed["lse"] = _views.of("lse", lse, stream, is_output=True)
    _run(LIBRARY.headrace_softmax_forward, _structs.SoftmaxTensors, borrowed, options, stream)
    return out if lse is None else (out, lse)


def softmax_backward(
    y: Any, dy: Any, axis: int = -1, *, scale: float = 1.0, out: Any = None, stream: int | None = None
) -> Any:
    """The gradient with respect to x of y = softmax(scale * x): scale * y * (dy - sum(y * dy, axis)).

    Args:
        y: the result of softmax(); 1 to 6 axes, f32, f16 or bf16.
        dy: the gradient with respect to y; shape and dtype of y.
        axis, scale: as in softmax().
        out: output array, shape and dtype of y; may be y or dy itself. Default: a new NumPy or CuPy array.
        stream: as in softmax().

    Returns:
        out.

    Raises:
        As softmax().
    """
    stream = _stream_of(y, stream)
    options = _options(axis, scale, "auto")
    borrowed = {"y": _views.of("y", y, stream), "dy": _views.of("dy", dy, stream)}
    view = borrowed["y"].view
    out = _output("out", out, y, view, view.shape, view.dtype)
    borrowed["dx"] = _views.of("out", out, stream, is_output=True)
    _run(LIBRARY.headrace_softmax_backward, _structs.SoftmaxBackwardTensors, borrowed, options, stream)
    return out
