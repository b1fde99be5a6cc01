"""Language models from GGUF files: headrace.LLM."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from . import _devices, _plans, _structs
from ._async_engine import AsyncEngine
from ._engine import generate_batch
from ._kv_cache import code_dtype
from ._grammar import Grammars
from ._library import LIBRARY, check
from ._outputs import Generation
from ._sampling import Options, SamplingParams, c_text, to_seed
from ._session import Handle, Session, pieces, read_completion, token_array

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Prompt = str | Sequence[int]
KvType = Literal["int8", "fp8", "int4", "kivi4", "kivi2"]
_CACHE_DTYPES = {"f16": _structs.F16, "bf16": _structs.BF16, "f32": _structs.F32}


class ModelInfo(NamedTuple):
    """Properties of a model; sizes in elements, lengths in tokens."""

    architecture: str
    name: str
    weight_types: str  # "Q4_1 210, F32 61": tensors of each type
    chat_template: str  # name of the recognized template; "" if none
    num_layers: int
    hidden_size: int
    ffn_size: int
    vocab_size: int
    context_length: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    num_parameters: int
    weight_bytes: int
    token_weight_bytes: int  # read per token
    bos_token: int | None
    eos_token: int | None
    num_threads: int
    exact: bool
    fast: bool


def _filled(ctype: Any, call: Callable[[Any, int, Any], int]) -> Any:
    """Calls a function that fills (array, capacity, count) twice: first for the count."""
    count = ctypes.c_size_t()
    check(call(None, 0, ctypes.byref(count)))
    array = (ctype * count.value)()
    if count.value:
        check(call(array, count.value, ctypes.byref(count)))
    return array


class LLM:
    """A language model in a GGUF file, on the CPU or a CUDA GPU.

        llm = headrace.LLM("SmolLM2-135M-Instruct.Q4_1.gguf")
        print(llm.chat([{"role": "user", "content": "Why is the sky blue?"}]).text)
        for text in llm.stream("Once upon a time", headrace.SamplingParams(max_tokens=50)):
            print(text, end="", flush=True)

    Weights and vocabulary are immutable: threads may share an LLM. Calls release the GIL while they compute.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str = "cpu",
        num_threads: int | None = None,
        max_context: int | None = None,
        cache_dtype: Literal["f16", "bf16", "f32"] | None = None,
        k_type: KvType | None = None,
        v_type: KvType | None = None,
        exact: bool = False,
        fast: bool = False,
        use_mmap: bool = False,
    ) -> None:
        """Loads the model.

        Args:
            path: a GGUF file.
            device: "cpu", "cuda" or "cuda:N" of this process. A GPU computes in bf16.
            num_threads: of the CPU; None: all that the process may use.
            max_context: most tokens of prompt and completion together; None: the model's context_length.
            cache_dtype: of the KV cache; None: "f16", on a GPU "bf16", with exact "f32".
            k_type, v_type: of stored keys and values, "int8", "fp8", "int4", "kivi4" or "kivi2": a fifth to a half of
                the memory, the newest 16 tokens (with keys of kivi4 and kivi2: 32) in cache_dtype. None: cache_dtype.
                kivi4 loses less than int4.
            exact: compute with f32 weights and activations: slower, 4 bytes per weight. Not on a GPU.
            fast: on a GPU, products of more than 128 tokens by cuBLASLt, which must be installed: faster, but the bits
                of a row then depend on its batch.
            use_mmap: map the file into memory while loading; it must not change then.

        Raises:
            ValueError: an argument; there is no such device.
            RuntimeError: the file cannot be read or breaks a rule; the message names both.
            NotImplementedError: the architecture, a weight type or the tokenizer is not supported.
            MemoryError: the weights exceed the free memory.
        """
        file = os.fsencode(path)
        if b"\0" in file:
            raise ValueError(f"path={path!r}: has a zero byte; remove it")

        def load(options: Any, handle: Any) -> int:
            return int(LIBRARY.headrace_model_load(file, options, handle))

        self._load(load, device, num_threads, max_context, (cache_dtype, k_type, v_type), (exact, fast, use_mmap))

    @classmethod
    def random(
        cls,
        like: str,
        *,
        weight_type: str = "BF16",
        seed: int = 0,
        device: str = "cpu",
        num_threads: int | None = None,
        max_context: int | None = None,
        cache_dtype: Literal["f16", "bf16", "f32"] | None = None,
        k_type: KvType | None = None,
        v_type: KvType | None = None,
        exact: bool = False,
        fast: bool = False,
    ) -> LLM:
        """A model with random weights, for timing at full size without a file.

        Args:
            like: the published model whose sizes it has: one of model_shapes().
            weight_type: of the matrices, by its name in GGUF: "BF16", "Q4_0", ...
            seed: equal seeds give equal weights.

        The other arguments and the errors are those of LLM().
        """
        shape = _structs.ModelShape(struct_size=ctypes.sizeof(_structs.ModelShape))
        check(LIBRARY.headrace_model_shape_find(c_text("like", like), ctypes.byref(shape)))
        type_name, number = c_text("weight_type", weight_type), to_seed(seed)

        def load(options: Any, handle: Any) -> int:
            return int(LIBRARY.headrace_random_model_load(ctypes.byref(shape), type_name, number, options, handle))

        llm = cls.__new__(cls)
        llm._load(load, device, num_threads, max_context, (cache_dtype, k_type, v_type), (exact, fast, False))
        return llm

    def _load(
        self,
        load: Callable[[Any, Any], int],
        device: str,
        num_threads: int | None,
        max_context: int | None,
        kv_types: tuple[str | None, str | None, str | None],
        modes: tuple[bool, bool, bool],
    ) -> None:
        cache_dtype, k_type, v_type = kv_types
        if cache_dtype is not None and cache_dtype not in _CACHE_DTYPES:
            raise ValueError(f"cache_dtype={cache_dtype!r}: must be one of {', '.join(map(repr, _CACHE_DTYPES))}")
        self._stored_dtypes = code_dtype("k_type", k_type), code_dtype("v_type", v_type)
        options = _structs.ModelOptions()
        check(LIBRARY.headrace_model_options_init_sized(ctypes.byref(options), ctypes.sizeof(options)))
        if device != "cpu":
            if not re.fullmatch(r"cuda(:[0-9]+)?", device):
                raise ValueError(f'device={device!r}: must be "cpu", "cuda" or "cuda:N"')
            found = _devices.from_text(device)
            options.device_type, options.device_id = found.device_type, found.device_id
        if num_threads is not None:
            options.num_threads = _plans.to_integer("num_threads", num_threads, 32)
            if options.num_threads < 1:
                raise ValueError(f"num_threads={num_threads}: must be at least 1, or None for all")
        options.exact, options.fast, options.use_mmap = map(bool, modes)
        self._handle = Handle()
        check(load(ctypes.byref(options), ctypes.byref(self._handle)))
        self._handle.own()
        self._grammars = Grammars(self._handle)
        self._async_engine: AsyncEngine | None = None
        self._lock = threading.Lock()  # guards _async_engine
        self._info = self._read_info()
        self._is_on_gpu = options.device_type == _structs.CUDA
        by_device = "bf16" if self._is_on_gpu else "f16"
        self._cache_dtype = _CACHE_DTYPES[cache_dtype or ("f32" if self._info.exact else by_device)]
        longest = self._info.context_length
        self.max_context = longest if max_context is None else _plans.to_integer("max_context", max_context, 64)
        if not 1 <= self.max_context <= longest:
            raise ValueError(f"max_context={max_context}: must be 1 to this model's context_length {longest}")

    def _read_info(self) -> ModelInfo:
        c = _structs.ModelInfo(struct_size=ctypes.sizeof(_structs.ModelInfo))
        check(LIBRARY.headrace_model_get_info(self._handle, ctypes.byref(c)))
        values = {name: getattr(c, name) for name in ModelInfo._fields}
        for name, value in values.items():
            if isinstance(value, bytes):
                values[name] = value.decode("utf-8", "replace")
        for name in ("bos_token", "eos_token"):
            if values[name] < 0:
                values[name] = None
        values["exact"], values["fast"] = bool(c.exact), bool(c.fast)
        return ModelInfo(**values)

    @property
    def info(self) -> ModelInfo:
        """Properties of the model."""
        return self._info

    def tokenize(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        """The tokens of a text.

        Args:
            text: any text; a byte without a token is dropped, as the models' own tokenizers do.
            special: parse special tokens in the text. Leave it off for text that is not trusted.
            bos: begin with the BOS token if the model requests it.
        """
        if not isinstance(text, str):
            raise TypeError(f"text: must be a str, got {type(text).__name__}")
        encoded = text.encode("utf-8", "surrogatepass")
        flags = (_structs.TOKENIZE_SPECIAL if special else 0) | (_structs.TOKENIZE_BOS if bos else 0)
        return list(
            _filled(
                ctypes.c_int32,
                lambda *filled: LIBRARY.headrace_tokenize(self._handle, encoded, len(encoded), flags, *filled),
            )
        )

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens; special tokens give their names, incomplete characters U+FFFD."""
        array = token_array("tokens", tokens)
        text = _filled(
            ctypes.c_char, lambda *filled: LIBRARY.headrace_detokenize(self._handle, array, len(array), *filled)
        )
        return bytes(text).decode("utf-8", "replace")

    def chat_tokens(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The tokens of a conversation.

        Args:
            messages: {"role": "system" | "user" | "assistant", "content": text} each. Special tokens inside are text.
                With a template that has tools (qwen2.5, llama3.1, llama3.2, mistral-v0.3, mistral-nemo,
                mistral-v7-tools, mistral-v7-tekken-tools): a first message "tools", a JSON object per line;
                "tool_call" after "assistant", a JSON object with name and arguments; "tool", a result. "tool_call_id"
                before a call or a result: its id, which Mistral's templates require.
            template: name of a chat template; None: the model's own.
            add_generation_prompt: end with the beginning of the assistant's turn.

        Raises:
            ValueError: a message, or an unknown template; the message lists the known names.
            RuntimeError, NotImplementedError: the model has no template, or one that is not known; pass `template`.
        """
        for i, message in enumerate(messages):
            if set(message) != {"role", "content"}:
                raise ValueError(f'messages[{i}] has the keys {sorted(message)}; pass "role" and "content"')
        c = (_structs.Message * len(messages))(
            *(
                _structs.Message(
                    c_text(f"messages[{i}] role", m["role"]), c_text(f"messages[{i}] content", m["content"])
                )
                for i, m in enumerate(messages)
            )
        )
        name = None if template is None else c_text("template", template)
        return list(
            _filled(
                ctypes.c_int32,
                lambda *filled: LIBRARY.headrace_chat_tokens(
                    self._handle, name, c, len(c), add_generation_prompt, *filled
                ),
            )
        )

    def _prompt_tokens(self, prompt: Prompt) -> list[int]:
        return self.tokenize(prompt) if isinstance(prompt, str) else list(token_array("prompt", prompt))

    def _start(self, tokens: list[int], options: Options, num_sequences: int) -> Session:
        """A session with room for the prompt and its completions."""
        most = options.c.max_new_tokens
        length = min(self.max_context, len(tokens) + most) if most else self.max_context
        if not tokens:
            raise ValueError("prompt: has no tokens; pass at least one")
        if len(tokens) > self.max_context:
            raise ValueError(f"prompt: {len(tokens)} tokens exceed max_context={self.max_context}; shorten the prompt")
        return Session(self, length, num_sequences)

    def _complete(self, tokens: list[int], options: Options) -> Generation:
        with self._start(tokens, options, options.n + 1) as session:
            check(LIBRARY.headrace_session_append(session, token_array("prompt", tokens), len(tokens), None))
            completions = ctypes.c_void_p()
            check(
                LIBRARY.headrace_session_generate_n(
                    session, ctypes.byref(options.c), options.n, None, None, ctypes.byref(completions)
                )
            )
        try:
            count = LIBRARY.headrace_completions_count(completions)
            return Generation(tokens, [read_completion(completions, i) for i in range(count)])
        finally:
            LIBRARY.headrace_completions_destroy(completions)

    @overload  # a str is a sequence of str, but the first match wins
    def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, params: SamplingParams | None = None
    ) -> Generation: ...
    @overload
    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | None = None) -> list[Generation]: ...
    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> Generation | list[Generation]:
        """Continues a prompt, or each of several, without a chat template.

        Args:
            prompts: a text or a list of tokens, or a list of these, which are computed together.
            params: sampling, length and stop strings; None: greedy.

        Returns:
            A Generation, or a list of them in the order of the prompts. A prompt's completions do not depend on the
            prompts beside it.

        Raises:
            ValueError: an argument; a prompt is empty or does not fit max_context.
            MemoryError: the KV cache does not fit.
            RuntimeError: the logits of a prompt are NaN, which means damaged weights.
        """
        options = Options(params or SamplingParams(), self._grammars)
        if _is_prompt(prompts):
            return self._complete(self._prompt_tokens(prompts), options)
        return generate_batch(self, [self._prompt_tokens(prompt) for prompt in prompts], options)

    @overload  # a str is a sequence of str, but the first match wins
    async def generate_async(  # type: ignore[overload-overlap]
        self, prompts: Prompt, params: SamplingParams | None = None
    ) -> Generation: ...
    @overload
    async def generate_async(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Generation]: ...
    async def generate_async(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> Generation | list[Generation]:
        """generate() for asyncio: calls of all tasks are computed together, on a thread of their own.

        A task that is cancelled ends its completions. The first call creates an AsyncEngine with its defaults, which
        lives as long as this object; create one for other options. Errors: generate() and AsyncEngine.generate().
        """
        engine = self._engine()
        if _is_prompt(prompts):
            return await engine.generate(prompts, params)
        return await engine.generate_all(prompts, params)

    async def stream_async(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[str]:
        """stream() for asyncio, on the engine of generate_async(). Closing the iterator ends it."""
        options = Options(params or SamplingParams(), self._grammars)
        _check_one(options)
        outputs = self._engine().stream(prompt, params)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if output.finish_reason == "error":
                    raise RuntimeError(output.error)
                if output.text:
                    yield output.text

    def _engine(self) -> AsyncEngine:
        with self._lock:
            if self._async_engine is None:
                # The engine's thread refers to a model of its own, so that this object closes the engine.
                model = copy.copy(self)
                self._async_engine = AsyncEngine(model)
            return self._async_engine

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        params: SamplingParams | None = None,
        *,
        template: str | None = None,
    ) -> Generation:
        """Answers a conversation. Arguments and errors: chat_tokens() and generate()."""
        options = Options(params or SamplingParams(), self._grammars)
        return self._complete(self.chat_tokens(messages, template=template), options)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Like generate() of one completion, as an iterator over pieces of its text.

        Tokens are computed on a thread of their own. Closing the iterator ends it.
        """
        return self._stream(self._prompt_tokens(prompt), params)

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        params: SamplingParams | None = None,
        *,
        template: str | None = None,
    ) -> Iterator[str]:
        """Like chat(), as an iterator over pieces of the answer."""
        return self._stream(self.chat_tokens(messages, template=template), params)

    def _stream(self, tokens: list[int], params: SamplingParams | None) -> Iterator[str]:
        options = Options(params or SamplingParams(), self._grammars)
        _check_one(options)
        return pieces(self._start(tokens, options, 1), tokens, options)

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits after every token: [len(tokens), vocab_size].

        Raises:
            ValueError: there are no tokens, more than max_context, or one is not in the vocabulary.
        """
        array = token_array("tokens", tokens)
        if not 1 <= len(array) <= self.max_context:
            raise ValueError(f"tokens: {len(array)} tokens, expected 1 to max_context={self.max_context}")
        out = np.empty((len(array), self._info.vocab_size), np.float32)
        with Session(self, len(array), 1) as session:
            check(LIBRARY.headrace_session_append(session, array, len(array), out.ctypes.data))
        return out


def _check_one(options: Options) -> None:
    if options.n != 1:
        raise ValueError(f"n={options.n}: a stream has one completion; pass n=1 or call generate()")


def _is_prompt(prompts: Prompt | Sequence[Prompt]) -> TypeIs[Prompt]:
    """Not a list of prompts; an empty list is one."""
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], (str, Sequence)))


def model_shapes() -> list[str]:
    """Names of the published models for LLM.random()."""
    names: list[str] = []
    while (name := LIBRARY.headrace_model_shape_name(len(names))) is not None:
        names.append(name.decode())
    return names
