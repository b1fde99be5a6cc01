"""Grammars of grammar.h: what generated texts must match, compiled for the vocabulary of a model."""

from __future__ import annotations

import collections
import ctypes
import json
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._library import LIBRARY, check

if TYPE_CHECKING:
    from ._sampling import SamplingParams

_KEPT = 32  # grammars of a model


class Grammar:
    """A headrace_grammar. What uses it keeps what it needs, so it may go while a text is generated."""

    def __init__(self, model: Any, kind: str, text: bytes) -> None:
        self.handle = ctypes.c_void_p()
        create = getattr(LIBRARY, f"headrace_grammar_create_{kind}")
        check(create(model, text, ctypes.c_size_t(len(text)), ctypes.byref(self.handle)))
        weakref.finalize(self, LIBRARY.headrace_grammar_destroy, self.handle).atexit = False


class Grammars:
    """Those of a model that were used last. Thread-safe."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._compiled: collections.OrderedDict[tuple[str, bytes], Grammar] = collections.OrderedDict()

    def of(self, params: SamplingParams) -> Grammar | None:
        """What the completions must match; None: any text. ValueError: the grammar, or several are given."""
        key = _source(params)
        if key is None:
            return None
        with self._lock:
            grammar = self._compiled.pop(key, None) or Grammar(self._model, *key)
            self._compiled[key] = grammar
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return grammar


def _source(params: SamplingParams) -> tuple[str, bytes] | None:
    given = [name for name in ("json_schema", "regex", "grammar") if getattr(params, name) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]}: pass one of them, as a text matches one grammar")
    name, text = given[0], getattr(params, given[0])
    if name == "json_schema" and isinstance(text, Mapping | bool):
        text = json.dumps(text if isinstance(text, bool) else dict(text))
    if not isinstance(text, str):
        kinds = "a str or a dict" if name == "json_schema" else "a str"
        raise TypeError(f"{name}: must be {kinds}, got {type(text).__name__}")
    return "gbnf" if name == "grammar" else name, text.encode("utf-8", "surrogatepass")
