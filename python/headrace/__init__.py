"""Headrace: exact, IO-aware attention on CPUs and GPUs. No framework needed.

On arrays (NumPy, DLPack, CUDA array interface):

    import headrace
    out = headrace.attention(q, k, v, causal=True)
    print(headrace.explain(q, k, v, causal=True))
    y = headrace.softmax(x, axis=-1)

Language models from GGUF files:

    llm = headrace.LLM("model.gguf")
    print(llm.chat([{"role": "user", "content": "Why is the sky blue?"}]).text)

    with headrace.serve("model.gguf", port=0) as server:  # OpenAI's API and a page to chat
        print(server.url)

For PyTorch use `headrace.torch`, for Hugging Face models `headrace.transformers`; both are imported on demand.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._append import kv_append
from ._arrays import Support, attention, check, explain, predict, supports
from ._async_engine import AsyncEngine
from ._backward import Gradients, attention_backward
from ._devices import Device, devices
from ._engine import Engine
from ._kv_cache import KvCache
from ._library import VERSION as __version__
from ._library import BusyError
from ._llm import LLM, ModelInfo, model_shapes
from ._merge import merge_states
from ._outputs import Completion, EngineStats, Generation, Output, TokenLogprob
from ._plans import FallbackWarning, Prediction, cache_clear
from ._program import Server, serve
from ._sampling import SamplingParams
from ._softmax import softmax, softmax_backward
from ._sparq import sparq_append, sparq_attention
from ._tuning import use_tuning
from ._views import TensorSpec

if TYPE_CHECKING:
    from . import torch as torch
    from . import transformers as transformers

__all__ = [
    "LLM",
    "AsyncEngine",
    "BusyError",
    "Completion",
    "Device",
    "Engine",
    "EngineStats",
    "FallbackWarning",
    "Generation",
    "Gradients",
    "KvCache",
    "ModelInfo",
    "Output",
    "Prediction",
    "SamplingParams",
    "Server",
    "Support",
    "TensorSpec",
    "TokenLogprob",
    "__version__",
    "attention",
    "attention_backward",
    "cache_clear",
    "check",
    "devices",
    "explain",
    "kv_append",
    "merge_states",
    "model_shapes",
    "predict",
    "serve",
    "softmax",
    "softmax_backward",
    "sparq_append",
    "sparq_attention",
    "supports",
    "use_tuning",
]


def __getattr__(name: str) -> Any:
    if name in ("torch", "transformers"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
