"""ctypes binding of the parts of the C ABI (include/headrace/headrace.h) that the benchmarks need."""

import ctypes
import os
import pathlib

MAX_RANK = 6
F32, F16, BF16, F64, I32 = 0, 1, 2, 3, 4
CAUSAL_NONE, CAUSAL_BOTTOM_RIGHT = 0, 1
CPU, CUDA = 0, 1


class Error(RuntimeError):
    """A failed call, with the library's message."""


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
    ]


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("sm", ctypes.c_int32),
        ("num_units", ctypes.c_int32),
        ("cpu_isa", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("l2_bytes", ctypes.c_int64),
        ("name", ctypes.c_char * 96),
    ]


class AttentionOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("softmax_scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("dropout_p", ctypes.c_double),
        ("dropout_seed", ctypes.c_uint64),
        ("dropout_offset", ctypes.c_uint64),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("max_seqlen_q", ctypes.c_int64),
        ("max_seqlen_k", ctypes.c_int64),
        ("causal", ctypes.c_int32),
        ("num_splits", ctypes.c_int32),
        ("strict_fallback", ctypes.c_int32),
        ("strict_rows", ctypes.c_int32),
        ("checked", ctypes.c_int32),
        ("deterministic", ctypes.c_int32),
        ("max_shared_prefix", ctypes.c_int64),
    ]


_TENSOR_NAMES = (
    "q k v out lse cu_seqlens_q cu_seqlens_k alibi_slopes bias mask tree_mask sinks probs block_table "
    "seqused_k"
).split()


class AttentionTensors(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(name, Tensor) for name in _TENSOR_NAMES]


class AttentionGradients(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, Tensor) for name in "dout dlse dq dk dv dbias dsinks".split()
    ]


class Problem(ctypes.Structure):
    _fields_ = (
        [("struct_size", ctypes.c_size_t)]
        + [
            (name, ctypes.c_int64)
            for name in (
                "batch seqlen_q seqlen_k total_q total_k num_heads num_kv_heads head_dim "
                "head_dim_v window_left window_right"
            ).split()
        ]
        + [(name, ctypes.c_double) for name in "softmax_scale softcap dropout_p".split()]
        + [
            (name, ctypes.c_int32)
            for name in (
                "dtype bias_dtype causal num_splits is_ragged has_alibi has_mask has_tree_mask "
                "has_sinks has_lse has_probs strict_fallback strict_rows checked alignment "
                "has_negative_strides phase has_dlse has_dbias has_dsinks deterministic has_seqused_k"
            ).split()
        ]
        + [(name, ctypes.c_int64) for name in "page_size num_pages max_pages".split()]
        + [(name, ctypes.c_int32) for name in "k_dtype v_dtype k_scaling v_scaling".split()]
        + [
            (name, ctypes.c_int64)
            for name in "recent_group num_recent_pages max_recent max_shared_prefix".split()
        ]
    )


def find_library():
    """HEADRACE_LIBRARY, else the newest libheadrace.so below build/ of this repository."""
    named = os.environ.get("HEADRACE_LIBRARY")
    if named:
        return named
    root = pathlib.Path(__file__).resolve().parents[2]
    built = sorted(root.glob("build/*/src/libheadrace.so"), key=lambda p: p.stat().st_mtime)
    if not built:
        raise Error("no build/*/src/libheadrace.so; build the library or set HEADRACE_LIBRARY")
    return str(built[-1])


class Library:
    def __init__(self, path=None):
        self.path = path or find_library()
        try:
            self.c = ctypes.CDLL(self.path)
        except OSError as error:
            raise Error(f"cannot load the library: {error}") from error
        self._declare()

    def _declare(self):
        c = self.c
        for name in ("last_error", "version", "build_info", "plan_kernel", "plan_explain"):
            getattr(c, f"headrace_{name}").restype = ctypes.c_char_p
        for name in ("plan_kernel", "plan_explain", "plan_workspace_bytes", "plan_destroy"):
            getattr(c, f"headrace_{name}").argtypes = [ctypes.c_void_p]
        c.headrace_plan_workspace_bytes.restype = ctypes.c_size_t
        c.headrace_plan_destroy.restype = None
        c.headrace_plan_run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        ]
        c.headrace_plan_run.restype = ctypes.c_int
        c.headrace_plan_run_backward.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_size_t, ctypes.c_void_p]
        c.headrace_plan_run_backward.restype = ctypes.c_int

    def initialised(self, name, struct):
        """A struct with the library's defaults; the library refuses structs newer than itself."""
        made = struct()
        init = getattr(self.c, f"headrace_{name}_init_sized")
        self.check(init(ctypes.byref(made), ctypes.c_size_t(ctypes.sizeof(struct))))
        return made

    def check(self, status):
        if status != 0:
            raise Error(self.c.headrace_last_error().decode())

    def build_info(self):
        return self.c.headrace_build_info().decode()

    def cuda_info(self, device_id=0):
        device = DeviceInfo(struct_size=ctypes.sizeof(DeviceInfo))
        self.check(self.c.headrace_cuda_info(device_id, ctypes.byref(device)))
        return device

    def cpu_info(self, num_threads):
        device = DeviceInfo(struct_size=ctypes.sizeof(DeviceInfo))
        self.check(self.c.headrace_cpu_info(ctypes.byref(device)))
        device.num_units = num_threads
        return device


def tensor(data_ptr, dtype, shape, strides, device_type=CPU):
    """A view of memory on the CPU or cuda:0; strides in elements."""
    t = Tensor(data=data_ptr, dtype=dtype, device_type=device_type, rank=len(shape))
    t.shape[: len(shape)] = shape
    t.strides[: len(strides)] = strides
    return t


class _HostMemory:
    def __init__(self, size):
        self._bytes = ctypes.create_string_buffer(size)

    def data_ptr(self):
        return ctypes.addressof(self._bytes)


class Attention:
    """A plan with its tensors and workspace; calling it only runs the plan. `allocate(bytes)` returns the workspace, an
    object with data_ptr(). With `gradients` (dout, dq, dk, dv by name) it is a backward, which needs the forward's lse.
    `others` are further tensors by name (block_table, seqused_k); max_shared_prefix, num_splits, softcap
    and strict_rows as in the library. `keeps` keeps the tensors' memory alive: views do not own it."""

    def __init__(
        self, library, q, k, v, out, causal, device, stream=None, allocate=None, lse=None, gradients=None,
        deterministic=False, keeps=(), others=None, max_shared_prefix=0,
        num_splits=0, softcap=0.0, strict_rows=False,
    ):  # fmt: skip
        self._library, self._keeps = library, keeps
        c = library.c
        self._tensors = library.initialised("attention_tensors", AttentionTensors)
        self._options = library.initialised("attention_options", AttentionOptions)
        self._gradients = library.initialised("attention_gradients", AttentionGradients)
        for name, view in (("q", q), ("k", k), ("v", v), ("out", out), ("lse", lse)):
            if view is not None:
                setattr(self._tensors, name, view)
        for name, view in (others or {}).items():
            setattr(self._tensors, name, view)
        for name, view in (gradients or {}).items():
            setattr(self._gradients, name, view)
        self._options.causal = causal
        self._options.deterministic = deterministic
        self._options.max_shared_prefix = max_shared_prefix
        self._options.num_splits = num_splits
        self._options.softcap = softcap
        self._options.strict_rows = strict_rows
        structs = [self._tensors, self._options]
        if gradients:
            structs.insert(1, self._gradients)
        describe = c.headrace_attention_backward_problem if gradients else c.headrace_attention_problem
        problem = library.initialised("problem", Problem)
        library.check(describe(*(ctypes.byref(x) for x in structs), ctypes.byref(problem)))
        self._plan = ctypes.c_void_p()
        library.check(
            c.headrace_plan_attention(ctypes.byref(problem), ctypes.byref(device), ctypes.byref(self._plan))
        )
        self.kernel = c.headrace_plan_kernel(self._plan).decode()
        size = c.headrace_plan_workspace_bytes(self._plan)
        self._workspace = (allocate or _HostMemory)(size) if size else None
        self._run = c.headrace_plan_run_backward if gradients else c.headrace_plan_run
        memory = self._workspace.data_ptr() if size else None
        addresses = [ctypes.addressof(x) for x in structs[:-1]]  # the options are part of the plan
        self._arguments = (self._plan, *addresses, None, memory, size, stream)

    def __call__(self):
        if self._run(*self._arguments) != 0:
            raise Error(self._library.c.headrace_last_error().decode())

    def __del__(self):
        if getattr(self, "_plan", None):
            self._library.c.headrace_plan_destroy(self._plan)
