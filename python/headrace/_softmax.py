"""softmax and its backward, on arrays."""

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
        raise ValueError(f"{name}: must be given for PyTorch tensors (only NumPy and CuPy arrays are allocated here)")
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

    Arrays are NumPy's (bfloat16 through ml_dtypes) or anything with DLPack or the CUDA array interface; all on one
    device, any strides. Nothing is copied. "online": Milakov, Gimelshein, "Online normalizer calculation for softmax",
    2018.

    Args:
        x: 1 to 6 axes of any size; f32, f16 or bf16.
        axis: that is summed over; negative ones count from the end.
        scale: of the exponents, of any sign.
        algorithm: "safe" takes the maximum, the sum and the weights in three passes, "online" maximum and sum in one;
            "auto" is the faster one for the device and the length of the axis.
        return_lse: also the lse.
        out: where to write, shape and dtype of x; x itself is fine. Default: a new NumPy or CuPy array.
        lse: where to write the lse, f32, the shape of x without the axis; default where it is asked for: a new array.
        stream: a cudaStream_t as an int; default: the current one of CuPy or PyTorch, the one that the CUDA array
            interface of x names, else CUDA's default stream.

    Returns:
        out, or (out, lse) with return_lse or lse. A row that is -inf throughout is 0 and its lse -inf; one with NaN or
        +inf is NaN throughout.

    Raises:
        ValueError: an argument broke a rule; the text names it, its value, the rule and the remedy.
        NotImplementedError: the build or the device has no kernel for it.
        MemoryError, RuntimeError: the host is out of memory, the device failed.
        TypeError: an argument is no array.
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
        y: what softmax() returned; 1 to 6 axes, f32, f16 or bf16.
        dy: the gradient with respect to y; shape and dtype of y.
        axis, scale: as in softmax().
        out: where to write, shape and dtype of y; y or dy itself is fine. Default: a new NumPy or CuPy array.
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
