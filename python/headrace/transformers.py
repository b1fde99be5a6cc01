"""attn_implementation="headrace" for Hugging Face transformers 5.8 and newer.

    import headrace.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="headrace")

Importing this module registers it. Causal masks, windows, softcap, sinks and grouped heads are passed to the kernel
directly; a mask tensor is built only for padded or packed batches and for caches with unused slots.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ._structs import CAUSAL_BOTTOM_RIGHT, CAUSAL_NONE
from .torch import _ops
from .torch._attention import random_dropout_state
from .torch._eager import extras_of

NAME = "headrace"

if "q_length" not in inspect.signature(sdpa_mask).parameters:
    raise ImportError("headrace.transformers: transformers is too old; install 5.8 or newer")

# Model families that pass their window to the attention function; the kernel applies it without a mask.
_PASSES_WINDOW = frozenset(("gemma2", "gpt_oss", "mistral", "qwen2"))


def _is_plain_causal(
    q_length: int,
    kv_length: int,
    q_offset: Any,
    kv_offset: Any,
    padding: torch.Tensor | None,
    local_size: int | None,
    config: Any,
) -> bool:
    """Whether the mask is exactly causal bottom-right with the model's window."""
    if torch.compiler.is_compiling() or isinstance(q_offset, torch.Tensor) or isinstance(kv_offset, torch.Tensor):
        return False
    if q_offset + q_length != kv_offset + kv_length:  # a static cache: keys past the last query
        return False
    if local_size is not None and kv_length > local_size and getattr(config, "model_type", "") not in _PASSES_WINDOW:
        return False
    if padding is None:
        return True
    return padding.shape[-1] == kv_offset + kv_length and bool(padding[:, kv_offset:].all())


def headrace_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    **others: Any,
) -> torch.Tensor | None:
    """The mask for headrace_attention: None if causal mask and window suffice, else bool, True = keep.

    Returns:
        None or [batch, 1, q_length, kv_length].
    """
    if allow_is_causal_skip and _is_plain_causal(
        q_length, kv_length, q_offset, kv_offset, attention_mask, local_size, config
    ):
        return None
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        config=config,
        **others,
    )


def headrace_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cache: Any = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function called by transformers.

    Args:
        query: [batch, num_heads, seqlen_q, head_dim]; float16, bfloat16, float32 or float64. key, value: [batch,
            num_kv_heads, seqlen_k, head_dim].
        attention_mask: None: causal (bottom-right) within sliding_window, or no mask if is_causal is False;
            bool (True = keep) or added to the scores: the complete mask.
        s_aux: [num_heads], sinks. position_bias: added to scores.

    Returns:
        (out [batch, seqlen_q, num_heads, head_dim], None): there are no attention weights.

    Raises:
        NotImplementedError: for the paged cache of continuous batching, and as headrace.torch.attention.
        ValueError, MemoryError, RuntimeError: as headrace.torch.attention.
    """
    if cache is not None:
        raise NotImplementedError(
            f"attn_implementation={NAME!r} with continuous batching: must be an implementation that transformers has "
            "itself ('sdpa', 'paged|eager', flash kernels); pass one, or use generate() without continuous batching"
        )
    left = -1
    mode = CAUSAL_NONE
    mask = bias = None
    if attention_mask is None:
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        if is_causal:
            mode = CAUSAL_BOTTOM_RIGHT
            if sliding_window is not None:
                left = sliding_window - 1  # sliding_window includes the query's own key, window_left does not
    elif attention_mask.dtype == torch.bool:
        mask = attention_mask
    else:
        bias = attention_mask
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    sinks = None if s_aux is None else s_aux.float()
    extras = None if mask is bias is sinks is None else extras_of(bias=bias, mask=mask, sinks=sinks)
    options = (scaling, softcap or 0.0, dropout, left, -1, 0, 0, mode, 0, False, False, False, False)
    state = random_dropout_state() if dropout else None
    out, _, _ = _ops.attention(query, key, value, extras, options, state, True, False, False)
    return out.transpose(1, 2).contiguous(), None  # copies only if query is laid out as [batch, num_heads, ...]


AttentionInterface.register(NAME, headrace_attention)
AttentionMaskInterface.register(NAME, headrace_mask)
