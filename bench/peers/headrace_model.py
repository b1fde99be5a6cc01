"""Models and sessions of Headrace (include/headrace/model.h) through ctypes: logits and greedy decoding."""

import ctypes

import numpy

import headrace_abi

DTYPES = {"f16": headrace_abi.F16, "bf16": headrace_abi.BF16, "f32": headrace_abi.F32}


class ModelOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("num_threads", ctypes.c_int32),
        ("exact", ctypes.c_int32),
        ("use_mmap", ctypes.c_int32),
        ("vocab_only", ctypes.c_int32),
        ("progress", ctypes.c_void_p),
        ("progress_user", ctypes.c_void_p),
    ]


class SessionOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("max_tokens", ctypes.c_int64),
        ("batch_tokens", ctypes.c_int64),
        ("cache_dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class Model:
    def __init__(self, library, path, num_threads, exact=False):
        self.library, self.c = library, library.c
        if not hasattr(self.c, "headrace_model_load"):
            raise headrace_abi.Error(f"{library.path} was built without models")
        options = library.initialised("model_options", ModelOptions)
        options.num_threads, options.exact = num_threads, int(exact)
        self.exact = exact
        self.handle = ctypes.c_void_p()
        library.check(
            self.c.headrace_model_load(str(path).encode(), ctypes.byref(options), ctypes.byref(self.handle))
        )

    def close(self):
        self.c.headrace_model_destroy(self.handle)


class Session:
    """A sequence and the logits after its last token. The KV cache is f16, or f32 for an exact model."""

    def __init__(self, model, vocab_size, max_tokens=1024):
        self.model, self.c, self.vocab_size = model, model.c, vocab_size
        options = model.library.initialised("session_options", SessionOptions)
        options.max_tokens = max_tokens
        options.cache_dtype = DTYPES["f32" if model.exact else "f16"]
        self.handle = ctypes.c_void_p()
        self._check(
            self.c.headrace_session_create(model.handle, ctypes.byref(options), ctypes.byref(self.handle))
        )

    def _check(self, status):
        self.model.library.check(status)

    def close(self):
        self.c.headrace_session_destroy(self.handle)

    def clear(self):
        self._check(self.c.headrace_session_truncate(self.handle, ctypes.c_int64(0)))

    def append(self, tokens):
        """[tokens, vocab]: the logits after each token."""
        ids = numpy.array(tokens, numpy.int32)
        logits = numpy.empty((len(ids), self.vocab_size), numpy.float32)
        self._check(
            self.c.headrace_session_append(
                self.handle,
                ctypes.c_void_p(ids.ctypes.data),
                ctypes.c_size_t(len(ids)),
                ctypes.c_void_p(logits.ctypes.data),
            )
        )
        return logits

    def greedy(self, prompt, count, ends):
        """Up to `count` tokens with the logits they were chosen from; stops after a token in `ends`."""
        self.clear()
        logits = self.append(prompt)[-1]
        for i in range(count):
            token = int(logits.argmax())
            yield token, logits
            if token in ends or i + 1 == count:
                return
            logits = self.append([token])[0]
