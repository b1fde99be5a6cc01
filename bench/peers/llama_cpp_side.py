"""llama.cpp through the low-level interface of llama-cpp-python: timing, logits, tokens, greedy decoding.

The name differs from the imported package, which this module would otherwise shadow."""

import contextlib
import ctypes
import os
import pathlib
import time

import llama_cpp
import numpy

ATTENTION = {"flash": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, "plain": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED}
FILE_TYPES = {"Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}
MICRO_BATCH = 512  # llama.cpp's own default


class Error(Exception):
    pass


@llama_cpp.llama_log_callback
def _errors_only(level, text, _):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        print(text.decode(errors="replace"), end="", flush=True)


llama_cpp.llama_log_set(_errors_only, ctypes.c_void_p(0))
llama_cpp.llama_backend_init()


def versions():
    """Version strings, and the instruction sets llama.cpp was compiled for."""
    system = " ".join(llama_cpp.llama_print_system_info().decode().split())
    name = llama_cpp.llama_version().decode() if hasattr(llama_cpp, "llama_version") else ""
    return {"llama_cpp_python": llama_cpp.__version__, "llama_cpp": name, "llama_cpp_build": system}


def convert(source, target, file_type):
    """Writes `source` with every matrix quantized to `file_type`."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[file_type]
    params.allow_requantize = True
    params.pure = True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise Error(f"llama.cpp could not convert {source} to {file_type}")


class Model:
    def __init__(self, path):
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise Error(f"llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.handle)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.bytes = llama_cpp.llama_model_size(self.handle)
        self.params = llama_cpp.llama_model_n_params(self.handle)
        buffer = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.handle, buffer, 256)
        self.description = buffer.value.decode()

    def tokenize(self, text, has_special=False):
        """Token ids without BOS or EOS. `has_special`: `<|im_start|>` is one token."""
        data = text.encode()
        tokens = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), False, has_special)
        if count < 0:
            raise Error("llama.cpp cannot tokenize the text")
        return list(tokens[:count])

    def text_of(self, tokens):
        buffer = ctypes.create_string_buffer(len(tokens) * 64 + 64)
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        size = llama_cpp.llama_detokenize(self.vocab, array, len(tokens), buffer, len(buffer), False, True)
        return buffer.raw[: max(size, 0)].decode(errors="replace")

    def chat(self, messages):
        """The prompt for (role, content) pairs by the model's own chat template."""
        array = (llama_cpp.llama_chat_message * len(messages))()
        for item, (role, content) in zip(array, messages):
            item.role, item.content = role.encode(), content.encode()
        buffer = ctypes.create_string_buffer(16384)
        template = llama_cpp.llama_model_chat_template(self.handle, None)
        size = llama_cpp.llama_chat_apply_template(template, array, len(messages), True, buffer, len(buffer))
        if not 0 < size <= len(buffer):
            raise Error("llama.cpp does not support the model's chat template")
        return buffer.raw[:size].decode()

    def is_end(self, token):
        return bool(llama_cpp.llama_vocab_is_eog(self.vocab, token))


class Context:
    """`attention` is "flash" or "plain". The KV cache is f16, llama.cpp's default."""

    def __init__(self, model, num_threads, attention, size=1024, has_float_cache=False):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = size
        params.n_batch = max(size, MICRO_BATCH)
        params.n_ubatch = MICRO_BATCH
        params.n_threads = params.n_threads_batch = num_threads
        params.flash_attn_type = ATTENTION[attention]
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32 if has_float_cache else llama_cpp.GGML_TYPE_F16
        params.no_perf = True
        self.model = model
        self.handle = llama_cpp.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise Error("llama.cpp cannot create a context")
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self.position = 0

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.handle)

    def clear(self):
        llama_cpp.llama_memory_clear(self.memory, True)
        self.position = 0

    def decode(self, tokens, wants_all=False):
        """Appends the tokens; returns the logits of the last one, or of all."""
        self._fill(tokens, wants_all)
        self._run()

    def _fill(self, tokens, wants_all):
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self.position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = wants_all or i + 1 == len(tokens)

    def _run(self):
        if llama_cpp.llama_decode(self.handle, self.batch):
            raise Error("llama_decode failed")
        llama_cpp.llama_synchronize(self.handle)
        self.position += self.batch.n_tokens

    def logits(self, count=1):
        """A copy of the last decode's logits: [count, vocab], float32."""
        data = llama_cpp.llama_get_logits(self.handle)
        return numpy.ctypeslib.as_array(data, (count, self.model.vocab_size)).copy()

    def logits_of_windows(self, tokens, window):
        """[positions, vocab]: each window of the tokens is processed independently."""
        parts = []
        for start in range(0, len(tokens), window):
            part = tokens[start : start + window]
            self.clear()
            self.decode(part, wants_all=True)
            parts.append(self.logits(len(part)))
        return numpy.concatenate(parts)

    def greedy(self, prompt, count):
        """Up to `count` tokens with the logits they were chosen from; stops after an end token."""
        self.clear()
        self.decode(prompt)
        for _ in range(count):
            logits = self.logits()[0]
            token = int(logits.argmax())  # ties: the first
            yield token, logits
            if self.model.is_end(token):
                return
            self.decode([token])

    def prefill_seconds(self, tokens, depth=()):
        """Time of all tokens at once, after `depth`, which is not timed."""
        self.clear()
        if depth:
            self.decode(depth)
        self._fill(tokens, False)
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start

    def generate_seconds(self, tokens, depth=()):
        """Time of the tokens one by one, after `depth`, which is not timed."""
        self.clear()
        if depth:
            self.decode(depth)
        start = time.perf_counter()
        for token in tokens:
            self.decode([token])
        return time.perf_counter() - start


@contextlib.contextmanager
def context(*arguments, **named):
    made = Context(*arguments, **named)
    try:
        yield made
    finally:
        made.close()


def random_tokens(model, count, seed=0):
    return [int(t) for t in numpy.random.default_rng(seed).integers(0, model.vocab_size, count)]


def cached_model_path(name="SmolLM2-135M-Instruct.Q4_1.gguf"):
    """The model cache of `./dev run`: headrace/models in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "headrace" / "models" / name
