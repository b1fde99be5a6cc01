"""How tokens are sampled: SamplingParams, and the structs of the library that say the same."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from . import _plans, _structs
from ._library import LIBRARY, check

if TYPE_CHECKING:
    from ._grammar import Grammars

_MAX_COMPLETIONS = 1024


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are sampled and when a completion ends. The defaults are greedy.

    Attributes:
        n: completions of the prompt; completion i is that of seed + i. More than one needs a temperature.
        max_tokens: most tokens of a completion; None: until the model ends it or the context is full.
        temperature: 0: greedy.
        top_p: the smallest set of tokens with this probability; 1: off.
        top_k: the most likely tokens; 0: off.
        min_p: least probability relative to the most likely token; 0: off.
        repetition_penalty: on tokens of prompt and completion; 1: off.
        presence_penalty: subtracted from the logits of generated tokens.
        frequency_penalty: the same, times the token's count.
        logit_bias: added to the logits of tokens; -inf bans a token.
        seed: a sample depends only on the seed and its position.
        stop: strings that end a completion; they are not part of its text.
        ignore_eos: continue past end-of-text tokens.
        order: of temperature and filters: "vllm", "transformers" or "llama.cpp".
        json_schema, regex, grammar: what each completion matches: JSON that is valid under a schema (a dict, or its
            text), a regular expression, or a grammar in GBNF. One of them. A completion that ends with "length" is
            the beginning of a match.
    """

    n: int = 1
    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    order: Literal["vllm", "transformers", "llama.cpp"] = "vllm"
    json_schema: Mapping[str, Any] | str | bool | None = None
    regex: str | None = None
    grammar: str | None = None


def c_text(name: str, text: str) -> bytes:
    """For arguments of C that end at the first zero byte."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: must be a str, got {type(text).__name__}")
    encoded = text.encode("utf-8", "surrogatepass")
    if b"\0" in encoded:
        raise ValueError(f"{name}: has a zero byte at {encoded.index(0)}; remove it")
    return encoded


def to_seed(value: int) -> int:
    seed = _plans.to_integer("seed", value, 64)
    if seed < 0:
        raise ValueError(f"seed={seed}: must be 0 to {(1 << 63) - 1}")
    return seed


class Options:
    """headrace_generation_options of SamplingParams, with the memory that they point into."""

    def __init__(self, params: SamplingParams, grammars: Grammars) -> None:
        number, integer = _plans.to_number, _plans.to_integer
        if params.order not in _structs.ORDER_NAMES:
            raise ValueError(f"order={params.order!r}: must be one of {', '.join(map(repr, _structs.ORDER_NAMES))}")
        if params.max_tokens is not None and integer("max_tokens", params.max_tokens, 64) < 1:
            raise ValueError(f"max_tokens={params.max_tokens}: must be at least 1, or None for no limit")
        self.n = integer("n", params.n, 64)
        if not 1 <= self.n <= _MAX_COMPLETIONS:
            raise ValueError(f"n={self.n}: must be 1 to {_MAX_COMPLETIONS}")
        biases = [
            _structs.LogitBias(integer(f"logit_bias token {token!r}", token, 32), number(f"logit_bias[{token}]", bias))
            for token, bias in params.logit_bias.items()
        ]
        stop = [params.stop] if isinstance(params.stop, str) else list(params.stop)
        self._bias = (_structs.LogitBias * len(biases))(*biases)
        self._stop = (ctypes.c_char_p * len(stop))(*(c_text(f"stop[{i}]", text) for i, text in enumerate(stop)))
        self._sampling = _structs.SamplingOptions()
        check(LIBRARY.headrace_sampling_options_init_sized(ctypes.byref(self._sampling), ctypes.sizeof(self._sampling)))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            setattr(self._sampling, name, number(name, getattr(params, name)))
        self._sampling.top_k = integer("top_k", params.top_k, 64)
        self._sampling.seed = to_seed(params.seed)
        self._sampling.logit_bias = self._bias
        self._sampling.num_logit_bias = len(biases)
        self._sampling.order = _structs.ORDER_NAMES.index(params.order)
        self.c = _structs.GenerationOptions()
        check(LIBRARY.headrace_generation_options_init_sized(ctypes.byref(self.c), ctypes.sizeof(self.c)))
        self.c.sampling = ctypes.pointer(self._sampling)
        self.c.max_new_tokens = params.max_tokens or 0
        self.c.stop = self._stop
        self.c.num_stop = len(stop)
        self.c.ignore_end = bool(params.ignore_eos)
        self._grammar = grammars.of(params)
        self.c.grammar = self._grammar.handle if self._grammar else None
