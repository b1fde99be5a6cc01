"""An engine for asyncio, which a thread of its own steps: headrace.AsyncEngine."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ._engine import Engine, EngineOptions
from ._outputs import Collector, EngineStats, Generation, Output, merged
from ._sampling import Options, SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ._llm import LLM, Prompt

_CLOSED = "the engine is closed; create another one"


class _Request:
    """A request and the outputs that its task has not taken: one per sample, whose length max_tokens bounds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, n: int) -> None:
        self.loop = loop
        self.num_open = n
        self.pending: dict[int, Output] = {}  # by sample
        self.failure: BaseException | None = None
        self.has_news = asyncio.Event()  # of the loop's thread

    def put(self, output: Output) -> None:
        earlier = self.pending.get(output.sample)
        self.pending[output.sample] = output if earlier is None else merged(earlier, output)
        self.num_open -= output.finish_reason is not None


class _Worker:
    """Steps an engine on a thread while requests are open, and wakes their event loops, each once a step.

    The lock guards the attributes and the requests; stop() needs none, because a finalizer calls it. The thread refers
    to the worker, not to the AsyncEngine, so that an AsyncEngine that is not referenced any more closes.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()  # of the thread, when it has no requests
        self._requests: dict[int, _Request] = {}  # that have not ended
        self._news: dict[asyncio.AbstractEventLoop, set[_Request]] = {}  # of loops that were woken
        self._failure: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="headrace engine", daemon=True)
        self._thread.start()
        _WORKERS.add(self)

    # ---- any thread ----

    def add(
        self, tokens: list[int], options: Options, num_logprobs: int, priority: int, cache_salt: int
    ) -> tuple[int, _Request]:
        request = _Request(asyncio.get_running_loop(), options.n)
        with self._lock:  # the outputs come after the entry in _requests
            if self._is_closed:
                raise RuntimeError(_CLOSED)
            if self._failure is not None:
                raise self._failure
            id = self.engine._add(tokens, options, num_logprobs, priority, cache_salt)
            self._requests[id] = request
            if len(self._requests) == 1:
                self._wakeups.put(None)
        return id, request

    def take(self, request: _Request) -> tuple[list[Output], bool]:
        """The outputs that came, and whether they are the last ones."""
        with self._lock:
            outputs, request.pending = list(request.pending.values()), {}
            return outputs, request.num_open == 0 or request.failure is not None

    def abort(self, id: int) -> None:
        with self._lock:
            if id in self._requests:
                self.engine.abort(id)

    def stop(self) -> None:
        """The thread ends the requests and itself after its step."""
        self._is_closed = True
        self._wakeups.put(None)

    def close(self) -> None:
        self.stop()
        self._thread.join()

    # ---- the thread ----

    def _run(self) -> None:
        while self._wait():
            try:
                with contextlib.suppress(MemoryError):  # the requests end with this error
                    self.engine.step()
                self._hand_out(self.engine.poll_all())
            except BaseException as error:  # raised where the requests are awaited
                self._end(error)
                return
        self._end(RuntimeError(_CLOSED))

    def _wait(self) -> bool:
        """Waits for a request; False: the engine is closed."""
        while not self._is_closed:
            with self._lock:
                if self._requests:
                    return True
            self._wakeups.get()
        return False

    def _hand_out(self, outputs: list[Output]) -> None:
        with self._lock:
            changed = []
            for output in outputs:
                request = self._requests[output.id]
                request.put(output)
                changed.append(request)
                if request.num_open == 0:
                    del self._requests[output.id]
            self._wake(changed)

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
            requests = list(self._requests.values())
            self._requests.clear()
            for request in requests:
                request.failure = error
            self._wake(requests)

    def _wake(self, requests: list[_Request]) -> None:
        loops = set()
        for request in requests:
            if request.loop not in self._news:
                loops.add(request.loop)
            self._news.setdefault(request.loop, set()).add(request)
        for loop in loops:
            try:
                loop.call_soon_threadsafe(self._set_events, loop)
            except RuntimeError:  # the loop is closed, so that nothing awaits its requests
                del self._news[loop]
                for id, request in self._requests.items():
                    if request.loop is loop:
                        self.engine.abort(id)

    def _set_events(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop's thread."""
        with self._lock:
            requests = self._news.pop(loop, set())
        for request in requests:
            request.has_news.set()


_WORKERS: weakref.WeakSet[_Worker] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread may compute while the process ends."""
    for worker in list(_WORKERS):
        worker.close()


class AsyncEngine:
    """An Engine for asyncio: a thread steps it, and outputs arrive in the event loop of the task that awaits them.

        async with headrace.AsyncEngine(llm) as engine:
            async for output in engine.stream("Once upon a time", headrace.SamplingParams(max_tokens=50)):
                print(output.text, end="", flush=True)

    Tasks of several event loops and threads may share it. A task that is cancelled aborts its request. Outputs that are
    not awaited are merged, so that a slow reader holds up nothing. An engine that is not referenced any more closes.
    """

    def __init__(self, llm: LLM, **options: Unpack[EngineOptions]) -> None:
        """Allocates the KV cache and starts the thread. Arguments and errors: Engine()."""
        self._llm = llm
        self._worker = _Worker(Engine(llm, **options))
        weakref.finalize(self, self._worker.stop)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        num_logprobs: int = 0,
        priority: int = 0,
        cache_salt: int = 0,
    ) -> AsyncGenerator[Output, None]:
        """Queues a request and yields its outputs; the last one of each sample has a finish_reason.

        Closing the iterator aborts the request. Arguments: Engine.add().

        Raises:
            ValueError: an argument; the prompt is empty or does not fit max_context.
            BusyError: max_requests requests are open; call again later.
            RuntimeError: the device is lost, or the engine was closed.
        """
        tokens = self._llm._prompt_tokens(prompt)
        options = Options(params or SamplingParams(), self._llm._grammars)
        return self._outputs(tokens, options, num_logprobs, priority, cache_salt)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: int = 0,
    ) -> Generation:
        """The completions of a prompt, equal to those of LLM.generate(). Arguments and errors: stream().

        RuntimeError also where a completion fails: the message says why.
        """
        options = Options(params or SamplingParams(), self._llm._grammars)
        tokens = self._llm._prompt_tokens(prompt)
        request = Collector(tokens, options.n)
        async for output in self._outputs(tokens, options, 0, priority, cache_salt):
            request.add(output)
        return request.generation()

    async def generate_all(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None, *, priority: int = 0
    ) -> list[Generation]:
        """generate() for several prompts, in their order. If one fails, the others are aborted."""
        tasks = [asyncio.ensure_future(self.generate(prompt, params, priority=priority)) for prompt in prompts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _outputs(
        self, tokens: list[int], options: Options, num_logprobs: int, priority: int, cache_salt: int
    ) -> AsyncGenerator[Output, None]:
        worker = self._worker
        id, request = worker.add(tokens, options, num_logprobs, priority, cache_salt)
        try:
            is_last = False
            while not is_last:
                await request.has_news.wait()
                request.has_news.clear()
                outputs, is_last = worker.take(request)
                for output in outputs:
                    yield output
            if request.failure is not None:
                raise request.failure
        finally:
            worker.abort(id)

    def stats(self) -> EngineStats:
        """Counts as of the last step."""
        return self._worker.engine.stats()

    def close(self) -> None:
        """Ends open requests with a RuntimeError where they are awaited, and the thread after its step."""
        self._worker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)
