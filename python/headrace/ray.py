"""Replicas of a model behind Ray Serve, with requests that share a prefix on the same replica.

    from ray import serve
    from headrace.ray import language_model

    handle = serve.run(language_model("model.gguf", num_replicas=2))
    async for output in handle.options(stream=True).stream.remote("Once upon a time", SamplingParams(max_tokens=50)):
        print(output.text, end="")

stream() of this module goes on with another replica if one dies. Needs Ray Serve: `pip install "ray[serve]"`.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ._async_engine import AsyncEngine
from ._llm import LLM
from ._sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ray.serve.handle import DeploymentHandle

    from ._llm import Prompt
    from ._outputs import EngineStats, Output

__all__ = ["PrefixRouter", "language_model", "stream"]

_BLOCK_SIZE = 64  # characters or tokens


def _blocks(prompt: Prompt) -> list[int]:
    """Hashes of the prefixes of whole blocks; one of the whole prompt if it is shorter than a block."""
    key, hashes = 0, []
    for end in range(_BLOCK_SIZE, max(len(prompt), _BLOCK_SIZE) + 1, _BLOCK_SIZE):
        block = prompt[end - _BLOCK_SIZE : end]
        key = hash((key, block if isinstance(block, str) else tuple(block)))
        hashes.append(key)
    return hashes


class PrefixIndex:
    """Which replica was given which prefix of a prompt last. At most `capacity` blocks, the latest used ones."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._capacity = capacity
        self._replicas: OrderedDict[int, Any] = OrderedDict()

    def add(self, prompt: Prompt, replica: Any) -> None:
        for key in _blocks(prompt):
            self._replicas[key] = replica
            self._replicas.move_to_end(key)
        while len(self._replicas) > self._capacity:
            self._replicas.popitem(last=False)

    def find(self, prompt: Prompt, replicas: Sequence[Any]) -> Any | None:
        """The one of `replicas` with the longest prefix; None: there is none."""
        found = None
        for key in _blocks(prompt):
            if key not in self._replicas:
                break
            if self._replicas[key] in replicas:
                found = self._replicas[key]
        return found


class PrefixRouter(RequestRouter):
    """Prefers the replica that has the longest prefix of a prompt in its cache, unless others have far less to do."""

    def initialize_state(self, max_imbalance: int = 8) -> None:
        """max_imbalance: open requests of a replica beyond those of the idlest one, until prefixes do not count."""
        self._index = PrefixIndex()
        self._max_imbalance = max_imbalance

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        def num_open(replica: RunningReplica) -> int:
            return self.replica_queue_len_cache.get(replica.replica_id) or 0

        ranked = sorted(candidate_replicas, key=num_open)
        prompt = _prompt_of(pending_request)
        if prompt is not None and ranked:
            known = self._index.find(prompt, [replica.replica_id for replica in ranked])
            for replica in ranked:
                if replica.replica_id == known and num_open(replica) - num_open(ranked[0]) <= self._max_imbalance:
                    ranked.remove(replica)
                    ranked.insert(0, replica)
                    break
        return [[replica] for replica in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        prompt = _prompt_of(pending_request)
        if prompt is not None:
            self._index.add(prompt, replica_id)


def _prompt_of(request: PendingRequest | None) -> Prompt | None:
    if request is None:
        return None
    prompt = request.args[0] if request.args else request.kwargs.get("prompt")
    return prompt if isinstance(prompt, (str, list, tuple)) else None


class _Replica:
    """A model and its engine, in a process of Ray."""

    def __init__(self, path: str, llm_options: dict[str, Any], engine_options: dict[str, Any]) -> None:
        self._engine = AsyncEngine(LLM(path, **llm_options), **engine_options)

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> AsyncGenerator[Output, None]:
        """AsyncEngine.stream()."""
        async for output in self._engine.stream(prompt, params, **options):
            yield output

    async def stats(self) -> EngineStats:
        """Of this replica."""
        return self._engine.stats()


def language_model(
    path: str,
    *,
    num_replicas: int = 1,
    max_ongoing_requests: int = 256,
    max_imbalance: int = 8,
    llm_options: dict[str, Any] | None = None,
    engine_options: dict[str, Any] | None = None,
    ray_actor_options: dict[str, Any] | None = None,
) -> serve.Application:
    """An application of Ray Serve for serve.run(), whose handle has stream(prompt, params, ...) and stats().

    Args:
        path: the model's file, at the same place on each node.
        num_replicas: processes with the model.
        max_ongoing_requests: of a replica; others wait in the caller.
        max_imbalance: PrefixRouter.initialize_state().
        llm_options: keyword arguments of LLM.
        engine_options: keyword arguments of Engine.
        ray_actor_options: resources of a replica, as {"num_gpus": 1}.
    """
    deployment = serve.deployment(
        _Replica,
        name="LanguageModel",
        num_replicas=num_replicas,
        max_ongoing_requests=max_ongoing_requests,
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter, request_router_kwargs={"max_imbalance": max_imbalance}
        ),
        ray_actor_options=ray_actor_options,
    )
    return deployment.bind(path, llm_options or {}, engine_options or {})


async def stream(
    handle: DeploymentHandle,
    prompt: Prompt,
    params: SamplingParams | None = None,
    *,
    max_restarts: int = 3,
    **options: Any,
) -> AsyncGenerator[Output, None]:
    """The outputs of a request with n=1. If its replica dies, another one computes the request again.

    A request gives the same tokens on every replica with the same hardware, so the outputs go on where they ended.

    Args:
        handle: of the application of language_model().
        prompt, params, options: AsyncEngine.stream().
        max_restarts: deaths of replicas, until the error is raised.

    Raises:
        ValueError: params.n is not 1.
        ray.exceptions.RayActorError: a replica died, once more than max_restarts.
    """
    if params is not None and params.n != 1:
        raise ValueError(f"n={params.n}: must be 1; send a request for each sample, with seed + i")
    num_tokens, num_characters = 0, 0
    for restart in range(max_restarts + 1):
        tokens_to_skip, characters_to_skip = num_tokens, num_characters
        try:
            async for output in handle.options(stream=True).stream.remote(prompt, params, **options):
                skipped = min(tokens_to_skip, len(output.tokens))
                text = output.text[characters_to_skip:]
                characters_to_skip -= len(output.text) - len(text)
                tokens_to_skip -= skipped
                if skipped == len(output.tokens) and not text and output.finish_reason is None:
                    continue
                num_tokens += len(output.tokens) - skipped
                num_characters += len(text)
                yield output._replace(
                    text=text,
                    tokens=output.tokens[skipped:],
                    logprobs=output.logprobs[skipped:],
                    top_logprobs=output.top_logprobs[skipped:],
                )
            return
        except RayActorError:
            if restart == max_restarts:
                raise
