"""Many requests with one model: headrace.Engine on engine.h."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict

from . import _plans, _structs
from ._library import LIBRARY, check
from ._outputs import Collector, EngineStats, Generation, Output, read_output
from ._sampling import Options, SamplingParams

if TYPE_CHECKING:
    from ._llm import LLM, Prompt


_PAGE_SIZE = 16
_GPU_SEQS = 256  # that an engine on a GPU runs at once, by default


class EngineOptions(TypedDict, total=False):
    """The keyword arguments of Engine."""

    max_batch_tokens: int | None
    max_num_seqs: int | None
    max_requests: int
    page_size: int
    num_pages: int | None
    num_host_pages: int
    prefix_cache: bool
    max_context: int | None


class Engine:
    """Many requests with one model by continuous batching, on the CPU or a GPU.

        engine = headrace.Engine(llm)
        ids = [engine.add(prompt, params) for prompt in prompts]
        for output in engine.stream():
            print(output.id, output.text)

    Any thread may call any function; steps of several threads run one after the other. Calls release the GIL while they
    compute. The tokens of a request depend on the request and the model alone, not on the requests beside it.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        max_batch_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        max_num_seqs: int | None = None,
        max_requests: int = 1024,
        page_size: int = 16,
        num_pages: int | None = None,
        num_host_pages: int = 0,
        prefix_cache: bool = True,
        max_context: int | None = None,
    ) -> None:
        """Allocates the KV cache, of the model's cache_dtype, k_type and v_type, on the model's device.

        Args:
            llm: the model.
            max_batch_tokens: most tokens of a step; None: by the device.
            max_prompt_tokens: most tokens of prompts in a step in which answers grow; None: by the device.
            max_num_seqs: most sequences that are computed at once; None: by the device.
            max_requests: most requests that have not ended or were not polled.
            page_size: tokens per page of the KV cache; changes no bit.
            num_pages: of the KV cache; None: those of four sequences of max_context tokens, on a GPU those of
                max_num_seqs such sequences, or as many as fit in 90 % of the memory that is free now.
            num_host_pages: for preempted sequences; 0: they are computed anew.
            prefix_cache: reuse the keys and values of equal prompts.
            max_context: most tokens of a prompt and its answer; None: those of llm.

        Raises:
            ValueError: an argument.
            MemoryError: the pages exceed the memory.
        """
        options = _structs.EngineOptions()
        check(LIBRARY.headrace_engine_options_init_sized(ctypes.byref(options), ctypes.sizeof(options)))
        options.max_tokens = llm.max_context
        if max_context is not None:
            options.max_tokens = _plans.to_integer("max_context", max_context, 64)
        if not 1 <= options.max_tokens <= llm.max_context:
            raise ValueError(f"max_context={max_context}: must be 1 to {llm.max_context}, as llm has; or pass None")
        numbers = {
            "max_batch_tokens": max_batch_tokens,
            "max_prompt_tokens": max_prompt_tokens,
            "max_num_seqs": max_num_seqs,
            "max_requests": max_requests,
            "page_size": page_size,
            "num_pages": num_pages,
            "num_host_pages": num_host_pages,
        }
        for name, value in numbers.items():
            if value is not None:
                setattr(options, name, _plans.to_integer(name, value, 64))
        options.cache_dtype = llm._cache_dtype
        options.k_dtype, options.v_dtype = llm._stored_dtypes
        options.no_prefix_cache = not prefix_cache
        self._llm = llm  # the model outlives its engines
        self._handle = ctypes.c_void_p()
        check(LIBRARY.headrace_engine_create(llm._handle, ctypes.byref(options), ctypes.byref(self._handle)))
        # At exit the process frees the memory: a thread may still step.
        weakref.finalize(self, LIBRARY.headrace_engine_destroy, self._handle).atexit = False
        self._stepping = threading.Lock()

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        num_logprobs: int = 0,
        priority: int = 0,
        cache_salt: int = 0,
        beam_width: int = 0,
        length_penalty: float = 1.0,
        stop_tokens: Sequence[int] = (),
    ) -> int:
        """Queues a request and returns its id.

        Args:
            prompt: a text or a list of tokens.
            params: sampling, length and stop strings; None: greedy.
            num_logprobs: most likely tokens reported beside each token.
            priority: the lowest runs first; equal: first come, first served.
            cache_salt: 0 to 2**56 - 1; only requests with the same one share cached prompts.
            beam_width: not 0: a beam search with that many beams, at most max_num_seqs. Sample i is the completion
                with the i-th highest score, output whole at the end. Of params, max_tokens and ignore_eos count.
            length_penalty: of the search, 0 to 10: score = logprob / len(tokens) ** length_penalty.
            stop_tokens: tokens that end a sample, besides those of the model.

        Raises:
            ValueError: an argument; the prompt is empty or does not fit max_context.
            BusyError: there are max_requests; poll, and add it later.
        """
        options = Options(params or SamplingParams(), self._llm._grammars)
        tokens = self._llm._prompt_tokens(prompt)
        return self._add(tokens, options, num_logprobs, priority, cache_salt, beam_width, length_penalty, stop_tokens)

    def _add(
        self,
        tokens: Sequence[int],
        options: Options,
        num_logprobs: int = 0,
        priority: int = 0,
        cache_salt: int = 0,
        beam_width: int = 0,
        length_penalty: float = 1.0,
        stop_tokens: Sequence[int] = (),
    ) -> int:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        request = _structs.Request()
        check(LIBRARY.headrace_request_init_sized(ctypes.byref(request), ctypes.sizeof(request)))
        request.tokens, request.num_tokens = array, len(array)
        for name in ("sampling", "max_new_tokens", "stop", "num_stop", "ignore_end"):
            setattr(request, name, getattr(options.c, name))
        request.grammar = options.c.grammar
        ends = [_plans.to_integer(f"stop_tokens[{i}]", token, 32) for i, token in enumerate(stop_tokens)]
        request.stop_tokens, request.num_stop_tokens = (ctypes.c_int32 * len(ends))(*ends), len(ends)
        request.n = options.n
        request.priority = _plans.to_integer("priority", priority, 64)
        request.cache_salt = _plans.to_integer("cache_salt", cache_salt, 64)
        request.beam_width = _plans.to_integer("beam_width", beam_width, 64)
        request.length_penalty = _plans.to_number("length_penalty", length_penalty)
        request.num_logprobs = _plans.to_integer("num_logprobs", num_logprobs, 32)
        if request.num_logprobs < 0:
            raise ValueError(f"num_logprobs={num_logprobs}: must not be negative")
        added = ctypes.c_int64()
        check(LIBRARY.headrace_engine_add(self._handle, ctypes.byref(request), ctypes.byref(added)))
        return added.value

    def abort(self, id: int) -> None:
        """What has not ended of the request ends in the next step. ValueError: no request had this id."""
        check(LIBRARY.headrace_engine_abort(self._handle, _plans.to_integer("id", id, 64)))

    def step(self) -> bool:
        """Computes one step; False: there was nothing to do.

        A request that fails ends with an output of finish_reason "error" and is no error of the step.

        Raises:
            MemoryError: an allocation failed. The requests so far end with an error; the engine goes on.
            RuntimeError: the device is lost. All requests have ended; later calls raise the same.
        """
        has_worked = ctypes.c_int()
        with self._stepping:
            check(LIBRARY.headrace_engine_step(self._handle, ctypes.byref(has_worked)))
        return bool(has_worked.value)

    def run(self) -> None:
        """Steps until there is nothing to do. Errors: step()."""
        while self.step():
            pass

    def poll(self) -> Output | None:
        """The output that waits longest, all of its sample since the last poll; None: there is none."""
        output = ctypes.c_void_p()
        check(LIBRARY.headrace_engine_poll(self._handle, ctypes.byref(output)))
        if not output:
            return None
        try:
            return read_output(output)
        finally:
            LIBRARY.headrace_output_destroy(output)

    def poll_all(self) -> list[Output]:
        """All outputs that wait, the one that waits longest first."""
        outputs: list[Output] = []
        while (output := self.poll()) is not None:
            outputs.append(output)
        return outputs

    def stream(self) -> Iterator[Output]:
        """Steps until there is nothing to do, and yields the outputs of each step. Errors: step()."""
        yield from self.poll_all()
        while self.step():
            yield from self.poll_all()

    def stats(self) -> EngineStats:
        """Counts as of the last step."""
        c = _structs.EngineStats(struct_size=ctypes.sizeof(_structs.EngineStats))
        check(LIBRARY.headrace_engine_get_stats(self._handle, ctypes.byref(c)))
        return EngineStats(*(getattr(c, name) for name in EngineStats._fields))


def generate_batch(llm: LLM, prompts: Sequence[list[int]], options: Options) -> list[Generation]:
    """The completions of several prompts, computed together.

    The KV cache has pages for all of them at once, but at most the engine's default; then some wait.
    """
    if not prompts:
        return []
    most = options.c.max_new_tokens or llm.max_context
    lengths = [min(len(tokens) + most, llm.max_context) for tokens in prompts]
    if llm._is_on_gpu:  # what fits is known to the engine alone
        num_seqs = min(options.n * len(prompts), _GPU_SEQS)
        engine = Engine(llm, max_requests=len(prompts), max_num_seqs=num_seqs, max_context=max(lengths))
    else:
        num_pages = options.n * sum(-(-length // _PAGE_SIZE) for length in lengths)
        one, default = (-(-count * llm.max_context // _PAGE_SIZE) for count in (1, 4))
        num_pages = min(max(num_pages, one), default)
        engine = Engine(llm, max_requests=len(prompts), page_size=_PAGE_SIZE, num_pages=num_pages)
    requests: dict[int, Collector] = {}
    for tokens in prompts:
        requests[engine._add(tokens, options)] = Collector(tokens, options.n)
    for output in engine.stream():
        requests[output.id].add(output)
    return [request.generation() for request in requests.values()]


