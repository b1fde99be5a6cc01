"""Headrace: exact, IO-aware attention on CPUs and GPUs. No framework needed.

On arrays (NumPy, DLPack, CUDA array interface):

    import headrace
    out = headrace.attention(q, k, v, causal=True)
    print(headrace.explain(q, k, v, causal=True))
    y = headrace.softmax(x, axis=-1)

For PyTorch `headrace.torch`, for Hugging Face models `headrace.transformers`; each is imported on demand.
"""

from ._arrays import Support, attention, check, explain, supports
from ._devices import Device, devices
from ._library import VERSION as __version__
from ._plans import FallbackWarning, cache_clear
from ._softmax import softmax, softmax_backward
from ._views import TensorSpec

__all__ = [
    "Device",
    "FallbackWarning",
    "Support",
    "TensorSpec",
    "__version__",
    "attention",
    "cache_clear",
    "check",
    "devices",
    "explain",
    "softmax",
    "softmax_backward",
    "supports",
]
