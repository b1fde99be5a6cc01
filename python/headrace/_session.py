"""One sequence of tokens with a model: sessions of model.h."""

from __future__ import annotations

import ctypes
import queue
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import _plans, _structs
from ._library import LIBRARY, check
from ._outputs import Completion
from ._sampling import Options

if TYPE_CHECKING:
    from ._llm import LLM


def token_array(name: str, tokens: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    values = [_plans.to_integer(f"{name}[{i}]", token, 32) for i, token in enumerate(tokens)]
    return (ctypes.c_int32 * len(values))(*values)


class Handle(ctypes.c_void_p):
    """A headrace_model, which lives as long as what refers to it: models, sessions and engines."""

    def own(self) -> None:
        # At exit the process frees the memory: a stream's thread may still read the weights.
        weakref.finalize(self, LIBRARY.headrace_model_destroy, ctypes.c_void_p(self.value)).atexit = False


class Session:
    """One sequence of tokens."""

    def __init__(self, llm: LLM, num_tokens: int, num_sequences: int) -> None:
        options = _structs.SessionOptions()
        check(LIBRARY.headrace_session_options_init_sized(ctypes.byref(options), ctypes.sizeof(options)))
        options.max_tokens = num_tokens
        options.cache_dtype = llm._cache_dtype
        options.k_dtype, options.v_dtype = llm._stored_dtypes
        options.num_pages = num_sequences * -(-num_tokens // options.page_size)
        self.handle = ctypes.c_void_p()
        self._model = llm._handle  # the model outlives its sessions
        check(LIBRARY.headrace_session_create(llm._handle, ctypes.byref(options), ctypes.byref(self.handle)))
        self._destroy = weakref.finalize(self, LIBRARY.headrace_session_destroy, self.handle)
        self._destroy.atexit = False

    def __enter__(self) -> ctypes.c_void_p:
        return self.handle

    def __exit__(self, *_: object) -> None:
        self._destroy()


def read_completion(completions: ctypes.c_void_p, index: int) -> Completion:
    c = _structs.Completion(struct_size=ctypes.sizeof(_structs.Completion))
    check(LIBRARY.headrace_completions_get(completions, index, ctypes.byref(c)))
    text = ctypes.string_at(c.text, c.num_bytes).decode("utf-8", "replace")
    reason: Any = _structs.FINISH_NAMES[c.finish]
    return Completion(text, c.tokens[: c.num_tokens], c.logprob, reason)


def pieces(started: Session, tokens: list[int], options: Options) -> Iterator[str]:
    """Generates on another thread; yields what it puts into a queue: texts, then None or an exception."""
    texts: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
    cancelled = threading.Event()

    def on_text(_: Any, text: Any, num_bytes: int) -> int:
        if num_bytes:
            texts.put(ctypes.string_at(text, num_bytes).decode("utf-8", "replace"))
        return cancelled.is_set()

    def run() -> None:
        try:
            with started as session:
                check(LIBRARY.headrace_session_append(session, token_array("prompt", tokens), len(tokens), None))
                options.c.on_text = _structs.TEXT_FN(on_text)
                result = _structs.Generation(struct_size=ctypes.sizeof(_structs.Generation))
                check(LIBRARY.headrace_session_generate(session, ctypes.byref(options.c), ctypes.byref(result)))
            texts.put(None)
        except BaseException as error:  # raised on the caller's thread
            texts.put(error)

    thread = threading.Thread(target=run, name="headrace stream", daemon=True)
    thread.start()
    try:
        while (piece := texts.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        cancelled.set()
        thread.join()
