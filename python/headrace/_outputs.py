"""What models generate: completions of whole prompts, and the outputs of an engine."""

from __future__ import annotations

import ctypes
from typing import Literal, NamedTuple, cast

from . import _structs
from ._library import LIBRARY, check

FinishReason = Literal["end", "stop", "length", "cancelled"]
RequestFinish = Literal["stop", "length", "aborted", "error"]


class Completion(NamedTuple):
    """What was generated after a prompt."""

    text: str
    tokens: list[int]  # including the one that ended it
    logprob: float  # of all tokens, from the model's unmodified logits
    finish_reason: FinishReason  # "end": an end-of-text token; "stop": a stop string; "length": max_tokens or context


class Generation(NamedTuple):
    """The completions of one prompt."""

    prompt_tokens: list[int]
    completions: list[Completion]

    @property
    def text(self) -> str:
        """The text of the first completion."""
        return self.completions[0].text


class TokenLogprob(NamedTuple):
    """A token and its logprob."""

    token: int
    logprob: float


class Output(NamedTuple):
    """What one sample of a request gained. The last one of a sample has a finish_reason."""

    id: int  # of the request
    sample: int  # 0 to n - 1
    text: str  # new text in whole characters
    tokens: list[int]  # new tokens, with one that ended the sample
    logprobs: list[float]  # [len(tokens)], natural, from the model's unmodified logits
    top_logprobs: list[list[TokenLogprob]]  # [len(tokens)][num_logprobs], the most likely first; []: none
    finish_reason: RequestFinish | None  # None: the sample has not ended
    stop_string: int | None  # with "stop": the index of the stop string; None: a token ended the sample
    error: str  # with "error": why; else ""
    num_cached_tokens: int  # of the prompt, found in the prefix cache when the sample started


class EngineStats(NamedTuple):
    """Counts since the engine was created; "now" says otherwise."""

    num_requests: int  # now: that have not ended or were not polled
    num_waiting: int  # now: sequences that have not started
    num_running: int  # now: sequences that are computed
    num_preempted: int  # now: sequences that gave their pages to others
    num_pages: int  # of the KV cache
    num_free_pages: int  # now; free pages may still hold a cached prefix
    num_finished: int  # requests
    num_steps: int  # steps that computed tokens
    num_scheduled_tokens: int  # computed in these steps: prompts and answers
    num_generated_tokens: int  # of answers
    num_prompt_tokens: int  # of the prompts of sequences that have started
    num_cached_tokens: int  # of them, found in the prefix cache
    num_preemptions: int  # of sequences
    host_seconds: float  # of the steps, without waits for a GPU, or the forward of a model on a CPU


def read_output(handle: ctypes.c_void_p) -> Output:
    """Copies a headrace_output."""
    c = _structs.OutputInfo(struct_size=ctypes.sizeof(_structs.OutputInfo))
    check(LIBRARY.headrace_output_get(handle, ctypes.byref(c)))
    count, num_top = c.num_tokens, c.num_top
    top = [
        [
            TokenLogprob(pair.token, pair.logprob)
            for pair in c.top_logprobs[i * num_top : (i + 1) * num_top]
            if pair.token >= 0
        ]
        for i in range(count if num_top else 0)
    ]
    return Output(
        id=c.id,
        sample=c.sample,
        text=ctypes.string_at(c.text, c.num_bytes).decode("utf-8", "replace"),
        tokens=c.tokens[:count],
        logprobs=c.logprobs[:count] if count else [],
        top_logprobs=top,
        finish_reason=cast("RequestFinish | None", _structs.REQUEST_FINISH_NAMES[c.finish]),
        stop_string=c.stop_string if c.stop_string >= 0 else None,
        error=c.error.decode("utf-8", "replace"),
        num_cached_tokens=c.num_cached_tokens,
    )


def merged(first: Output, then: Output) -> Output:
    """Two outputs of a sample, one after the other, as one."""
    return then._replace(
        text=first.text + then.text,
        tokens=first.tokens + then.tokens,
        logprobs=first.logprobs + then.logprobs,
        top_logprobs=first.top_logprobs + then.top_logprobs,
        # An output without tokens has none.
        num_cached_tokens=then.num_cached_tokens if then.tokens else first.num_cached_tokens,
    )


class Collector:
    """Puts the outputs of one request together, up to its Generation."""

    def __init__(self, prompt_tokens: list[int], n: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._samples: list[list[Output]] = [[] for _ in range(n)]
        self.num_open = n

    def add(self, output: Output) -> None:
        self._samples[output.sample].append(output)
        self.num_open -= output.finish_reason is not None

    def generation(self) -> Generation:
        """Of a request that has ended. RuntimeError: a sample failed."""
        return Generation(self._prompt_tokens, [_completion(outputs) for outputs in self._samples])


def _completion(outputs: list[Output]) -> Completion:
    last = outputs[-1]
    if last.finish_reason == "error":
        raise RuntimeError(last.error)
    reason: FinishReason = "stop" if last.stop_string is not None else "end"
    if last.finish_reason == "length":
        reason = "length"
    elif last.finish_reason == "aborted":
        reason = "cancelled"
    logprob = 0.0
    for output in outputs:
        for value in output.logprobs:
            logprob += value  # in the order of the tokens, as a session adds them
    tokens = [token for output in outputs for token in output.tokens]
    return Completion("".join(output.text for output in outputs), tokens, logprob, reason)
