"""attention_backward on arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._arguments import EXTRA_NAMES
from ._arrays import Call, new_call, new_output, options_of_call
from ._views import is_torch


class Gradients(NamedTuple):
    """The result of attention_backward()."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsinks: Any = None


def attention_backward(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    dout: Any,
    *,
    dlse: Any = None,
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
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    strict_fallback: bool = False,
    checked: bool = False,
    deterministic: bool = False,
    layout: str = "bshd",
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    dbias: Any = None,
    dsinks: Any = None,
    stream: int | None = None,
) -> Gradients:
    """The gradients of attention() with respect to q, k, v, bias and sinks.

        out, lse = headrace.attention(q, k, v, causal=True, return_lse=True)
        dq, dk, dv, *_ = headrace.attention_backward(q, k, v, out, lse, dout, causal=True)

    Accepts the same arrays as attention(), all on one device. For PyTorch tensors call backward() on the result of
    headrace.torch.attention().

    Args:
        q, k, v: the inputs of attention(): [batch, seqlen_q, num_heads, head_dim], [batch, seqlen_k,
            num_kv_heads, head_dim] and [batch, seqlen_k, num_kv_heads, head_dim_v]; f32, f16, bf16 or f64.
        out: the result of attention(): [batch, seqlen_q, num_heads, head_dim_v], dtype of q.
        lse: its lse (return_lse=True): [batch, num_heads, seqlen_q] (ragged [num_heads, total_q]); f32 (f64 for
            f64 inputs).
        dout: the gradient of out; its shape and dtype.
        dlse: the gradient of lse, its shape and dtype; None if the loss does not depend on lse.
        softmax_scale, causal, window, softcap, alibi_slopes, bias, mask, tree_mask, sinks, dropout_p, dropout_seed,
            dropout_offset, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, strict_fallback, checked, layout,
            stream: as in the call of attention(). With layout="bhsd" q, k, v, out, dout, dq, dk and dv are
            [batch, heads, seqlen, dim].
        deterministic: bit-identical dq from run to run on a GPU, too; everything else, and all gradients on the CPU,
            always is.
        dq, dk, dv, dbias, dsinks: output arrays with the shape and dtype of q, k, v, bias and sinks. Default: new
            NumPy or CuPy arrays.

    Returns:
        Gradients(dq, dk, dv, dbias, dsinks), a named tuple. dk and dv are summed over the query heads of a group, dbias
        over the axes where bias has size 1. dbias is None without bias, dsinks without sinks. Queries that see no
        key contribute zero gradients.

    Raises:
        As attention().
    """
    if is_torch(q):
        raise TypeError(
            "q is a PyTorch tensor: must be an array; call headrace.torch.attention() and backward() of its result"
        )
    given = (cu_seqlens_q, cu_seqlens_k, alibi_slopes, bias, mask, tree_mask, sinks)
    extras = dict.fromkeys(EXTRA_NAMES) | dict(zip(EXTRA_NAMES, given))
    call = new_call(q, k, v, extras, stream, layout)
    call.add("out", out)
    call.add("lse", lse)
    call.add_gradient("dout", dout)
    if dlse is not None:
        call.add_gradient("dlse", dlse)
    outputs = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsinks": dsinks}
    results = Gradients(**{name: _add_output(call, name, array, q) for name, array in outputs.items()})
    options = options_of_call(
        extras,
        {
            "softmax_scale": softmax_scale,
            "causal": causal,
            "window": window,
            "softcap": softcap,
            "dropout_p": dropout_p,
            "max_seqlen_q": max_seqlen_q,
            "max_seqlen_k": max_seqlen_k,
            "num_splits": 0,
            "strict_rows": False,
            "strict_fallback": strict_fallback,
            "checked": checked,
            "deterministic": deterministic,
        },
    )
    call.run(options, dropout_seed, dropout_offset)
    return results


def _add_output(call: Call, name: str, array: Any, like: Any) -> Any:
    """A gradient's array: the given one or a new one; None if its input is absent."""
    view = call.views.get(name.removeprefix("d"))
    if array is None and view is not None:
        array = new_output(name, like, call.views["q"], call.shape_of(name.removeprefix("d")), view.dtype)
    if array is not None:
        call.add_gradient(name, array, is_output=True)
    return array
