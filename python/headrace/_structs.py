"""ctypes declarations of the structs and constants of the C headers."""

from __future__ import annotations

import ctypes

OK, INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, DEVICE_ERROR, IO_ERROR, INTERNAL, BUSY = range(8)
F32, F16, BF16, F64, I32, U32, BOOL, I64, I8, F8E4M3, I4X2, U4X2, U2X4 = range(13)
CPU, CUDA = range(2)
MAX_RANK = 6

DTYPE_NAMES = ("f32", "f16", "bf16", "f64", "i32", "u32", "bool", "i64", "i8", "f8e4m3", "i4x2", "u4x2", "u2x4")
DTYPE_BYTES = (4, 2, 2, 8, 4, 4, 1, 8, 1, 1, 1, 1, 1)
CODES_PER_BYTE = {I4X2: 2, U4X2: 2, U2X4: 4}
# Stored keys and values, by their names in Python.
CODES = {"int8": I8, "fp8": F8E4M3, "int4": I4X2, "kivi4": U4X2, "kivi2": U2X4}
DEVICE_NAMES = ("cpu", "cuda")
FORWARD, BACKWARD = range(2)
CAUSAL_NONE, CAUSAL_BOTTOM_RIGHT, CAUSAL_TOP_LEFT = range(3)


def _fields(ctype: type, names: str) -> list[tuple[str, type]]:
    return [(name, ctype) for name in names.split()]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        *_fields(ctypes.c_int32, "dtype device_type device_id rank"),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
    ]


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int32, "device_type device_id sm num_units"),
        *_fields(ctypes.c_uint32, "cpu_isa smem_bytes"),
        ("l2_bytes", ctypes.c_int64),
        ("name", ctypes.c_char * 96),
    ]


class AttentionOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_double, "softmax_scale softcap dropout_p"),
        *_fields(ctypes.c_uint64, "dropout_seed dropout_offset"),
        *_fields(ctypes.c_int64, "window_left window_right max_seqlen_q max_seqlen_k"),
        *_fields(ctypes.c_int32, "causal num_splits strict_fallback strict_rows checked deterministic"),
        ("max_shared_prefix", ctypes.c_int64),
    ]


class RunOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), *_fields(ctypes.c_uint64, "dropout_seed dropout_offset")]


SOFTMAX_AUTO, SOFTMAX_SAFE, SOFTMAX_ONLINE = range(3)


class SoftmaxOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("scale", ctypes.c_double),
        *_fields(ctypes.c_int32, "axis algorithm"),
    ]


class SoftmaxTensors(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), *_fields(Tensor, "x y lse")]


class SoftmaxBackwardTensors(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), *_fields(Tensor, "y dy dx")]


TENSOR_NAMES = (
    "q",
    "k",
    "v",
    "out",
    "lse",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "alibi_slopes",
    "bias",
    "mask",
    "tree_mask",
    "sinks",
    "probs",
    "block_table",
    "seqused_k",
    "page_indptr",  # behind `quantised`
)


QUANTISED_NAMES = ("k_scale", "v_scale", "k_recent", "v_recent", "recent_table")


class QuantisedKv(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), *((name, Tensor) for name in QUANTISED_NAMES)]


class AttentionTensors(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *((name, Tensor) for name in TENSOR_NAMES[:-1]),
        ("quantised", ctypes.c_void_p),
        (TENSOR_NAMES[-1], Tensor),
    ]


class AttentionCall(ctypes.Structure):
    """The tensors of a call, and behind them what their `quantised` points to if there are codes."""

    _fields_ = [("tensors", AttentionTensors), ("quantised", QuantisedKv)]

    def point(self) -> None:
        """Again after a copy."""
        if self.quantised.struct_size:
            self.tensors.quantised = ctypes.addressof(self.quantised)


GRADIENT_NAMES = ("dout", "dlse", "dq", "dk", "dv", "dbias", "dsinks")


class AttentionGradients(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), *((name, Tensor) for name in GRADIENT_NAMES)]


ROPE_INTERLEAVED, ROPE_HALVES = range(2)


class RopeOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int32, "layout scaling"),
        ("rot_dim", ctypes.c_int64),
        *_fields(ctypes.c_double, "base factor"),
        *_fields(ctypes.c_int64, "original_context_length seqlen"),
        *_fields(ctypes.c_double, "beta_fast beta_slow mscale mscale_all_dim low_freq_factor high_freq_factor"),
        ("attention_factor", ctypes.c_double),
        ("frequencies", ctypes.c_void_p),
        *_fields(ctypes.c_int32, "truncate reserved"),
    ]


class KvAppendOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("rope", ctypes.c_void_p),
        ("norm_eps", ctypes.c_double),
        *_fields(ctypes.c_int32, "hadamard reserved"),
    ]


KV_APPEND_NAMES = ("k", "v", "k_pages", "v_pages", "slot_mapping", "q", "q_out", "positions", "cos", "sin")


class KvAppendTensors(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *((name, Tensor) for name in (*KV_APPEND_NAMES, "q_norm_weight", "k_norm_weight")),
        ("quantised", ctypes.c_void_p),
        *((name, Tensor) for name in ("recent_slots", "channel_factors")),
    ]


KV_NHD, KV_HND = range(2)


class KvCacheOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int64, "num_layers num_kv_heads head_dim head_dim_v num_pages num_host_pages page_size"),
        *_fields(ctypes.c_int32, "dtype layout device_type device_id k_dtype v_dtype"),
        ("num_recent_pages", ctypes.c_int64),
    ]


class KvSequenceInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int64, "length num_reserved num_pages"),
        *_fields(ctypes.c_int32, "is_swapped reserved"),
    ]


class KvBatch(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_void_p, "sequences num_tokens"),
        *_fields(ctypes.c_int64, "num_sequences max_pages"),
        *_fields(ctypes.c_void_p, "block_table seqused_k slot_mapping"),
        *_fields(ctypes.c_int64, "num_slots max_recent"),
        *_fields(ctypes.c_void_p, "recent_table recent_slots"),
    ]


class KvCacheStats(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int64, "num_pages num_free_pages num_used_pages num_cached_pages num_shared_pages"),
        *_fields(ctypes.c_int64, "num_host_pages num_free_host_pages num_sequences num_swapped_sequences"),
        *_fields(ctypes.c_int64, "num_tokens num_unused_slots num_queried_tokens num_hit_tokens num_evictions"),
        *_fields(ctypes.c_int64, "num_page_copies num_moved_tokens num_pages_swapped_out num_pages_swapped_in"),
    ]


class MergeStatesTensors(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("num_states", ctypes.c_int64),
        *_fields(ctypes.c_void_p, "outs lses"),
        *_fields(Tensor, "out lse"),
    ]


class SparqOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("softmax_scale", ctypes.c_double),
        *_fields(ctypes.c_int64, "num_components num_keys local_window max_seqlen_k"),
    ]


class SparqTensors(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(Tensor, "q k k_components v out v_sum block_table seqused_k indices alpha"),
        ("quantised", ctypes.c_void_p),
    ]


class SparqAppendTensors(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(Tensor, "k slot_mapping k_components v v_sum cu_seqlens k_slots v_scale"),
    ]


class PredictionInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), *_fields(ctypes.c_double, "seconds flops bytes exps"),
        *_fields(ctypes.c_int64, "num_tiles num_slots"), ("balance", ctypes.c_double),
        *_fields(ctypes.c_int32, "ctas num_parts"), *_fields(ctypes.c_char_p, "limit bound ceilings reason text"),
    ]  # fmt: skip


class PredictionPart(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), *_fields(ctypes.c_double, "unit_seconds constant"),
    ]  # fmt: skip


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int64, "batch seqlen_q seqlen_k total_q total_k num_heads num_kv_heads head_dim head_dim_v"),
        *_fields(ctypes.c_int64, "window_left window_right"),
        *_fields(ctypes.c_double, "softmax_scale softcap dropout_p"),
        *_fields(ctypes.c_int32, "dtype bias_dtype causal num_splits is_ragged has_alibi has_mask has_tree_mask"),
        *_fields(ctypes.c_int32, "has_sinks has_lse has_probs strict_fallback strict_rows checked"),
        *_fields(ctypes.c_int32, "alignment has_negative_strides phase has_dlse has_dbias has_dsinks"),
        *_fields(ctypes.c_int32, "deterministic has_seqused_k"),
        *_fields(ctypes.c_int64, "page_size num_pages max_pages"),
        *_fields(ctypes.c_int32, "k_dtype v_dtype k_scaling v_scaling"),
        *_fields(ctypes.c_int64, "recent_group num_recent_pages max_recent max_shared_prefix"),
    ]


PROGRESS_FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
TEXT_FN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)


class ModelOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int32, "num_threads exact use_mmap vocab_only"),
        ("progress", PROGRESS_FN),
        ("progress_user", ctypes.c_void_p),
        *_fields(ctypes.c_int32, "device_type device_id fast reserved"),
    ]


class ModelShape(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_char_p, "name architecture"),
        *_fields(ctypes.c_int64, "num_layers hidden_size ffn_size vocab_size num_heads num_kv_heads head_dim"),
        *_fields(ctypes.c_int64, "context_length window"),
        *_fields(ctypes.c_double, "rms_eps rope_base rope_linear_factor rope_llama3_factor rope_low_freq_factor"),
        *_fields(ctypes.c_double, "rope_high_freq_factor rope_original_context_length"),
        *_fields(ctypes.c_int64, "bos_token eos_token"),
        *_fields(ctypes.c_int32, "tied_embeddings reserved"),
    ]


class ModelInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_char_p, "architecture name weight_types chat_template"),
        *_fields(ctypes.c_int64, "num_layers hidden_size ffn_size vocab_size context_length num_heads num_kv_heads"),
        *_fields(ctypes.c_int64, "head_dim head_dim_v num_parameters weight_bytes token_weight_bytes"),
        *_fields(ctypes.c_int32, "bos_token eos_token num_threads exact device_type device_id fast reserved"),
    ]


class Message(ctypes.Structure):
    _fields_ = _fields(ctypes.c_char_p, "role content")


class SessionOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int64, "max_tokens batch_tokens"),
        *_fields(ctypes.c_int32, "cache_dtype reserved"),
        *_fields(ctypes.c_int64, "page_size num_pages"),
        *_fields(ctypes.c_int32, "k_dtype v_dtype"),
        *_fields(ctypes.c_int64, "sparq_components sparq_keys"),
    ]


class LogitBias(ctypes.Structure):
    _fields_ = [("token", ctypes.c_int32), ("bias", ctypes.c_float)]


class SamplingOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_double, "temperature top_p min_p repetition_penalty presence_penalty frequency_penalty"),
        *_fields(ctypes.c_int64, "top_k repetition_window"),
        *_fields(ctypes.c_uint64, "seed sequence"),
        ("logit_bias", ctypes.POINTER(LogitBias)),
        ("num_logit_bias", ctypes.c_size_t),
        *_fields(ctypes.c_int32, "order reserved"),
    ]


class GenerationOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("sampling", ctypes.POINTER(SamplingOptions)),
        ("max_new_tokens", ctypes.c_int64),
        ("stop", ctypes.POINTER(ctypes.c_char_p)),
        ("num_stop", ctypes.c_size_t),
        *_fields(ctypes.c_int32, "ignore_end reserved"),
        ("on_text", TEXT_FN),
        *_fields(ctypes.c_void_p, "user grammar"),
    ]


class Generation(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("num_tokens", ctypes.c_int64),
        *_fields(ctypes.c_int32, "finish reserved"),
    ]


class Completion(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("num_tokens", ctypes.c_int64),
        ("text", ctypes.POINTER(ctypes.c_char)),
        ("num_bytes", ctypes.c_size_t),
        *_fields(ctypes.c_double, "logprob score"),
        *_fields(ctypes.c_int32, "finish reserved"),
    ]


class TokenLogprob(ctypes.Structure):
    _fields_ = [("token", ctypes.c_int32), ("logprob", ctypes.c_float)]


class EngineOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int64, "max_tokens max_batch_tokens max_num_seqs max_requests"),
        *_fields(ctypes.c_int64, "page_size num_pages num_host_pages"),
        *_fields(ctypes.c_int32, "cache_dtype no_prefix_cache k_dtype v_dtype"),
        ("max_prompt_tokens", ctypes.c_int64),
    ]


class Request(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("num_tokens", ctypes.c_size_t),
        ("sampling", ctypes.POINTER(SamplingOptions)),
        *_fields(ctypes.c_int64, "n max_new_tokens"),
        ("stop_tokens", ctypes.POINTER(ctypes.c_int32)),
        ("num_stop_tokens", ctypes.c_size_t),
        ("stop", ctypes.POINTER(ctypes.c_char_p)),
        ("num_stop", ctypes.c_size_t),
        ("priority", ctypes.c_int64),
        *_fields(ctypes.c_int32, "num_logprobs ignore_end"),
        ("grammar", ctypes.c_void_p),
        *_fields(ctypes.c_int64, "cache_salt beam_width"),
        ("length_penalty", ctypes.c_double),
    ]


class OutputInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int64, "id sample"),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("num_tokens", ctypes.c_int64),
        ("logprobs", ctypes.POINTER(ctypes.c_float)),
        ("top_logprobs", ctypes.POINTER(TokenLogprob)),
        ("num_top", ctypes.c_int64),
        ("text", ctypes.POINTER(ctypes.c_char)),
        ("num_bytes", ctypes.c_size_t),
        ("error", ctypes.c_char_p),
        *_fields(ctypes.c_int32, "finish reserved"),
        *_fields(ctypes.c_int64, "stop_string num_cached_tokens"),
    ]


class EngineStats(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *_fields(ctypes.c_int64, "num_requests num_waiting num_running num_preempted num_pages num_free_pages"),
        *_fields(ctypes.c_int64, "num_finished num_steps num_scheduled_tokens num_generated_tokens"),
        *_fields(ctypes.c_int64, "num_prompt_tokens num_cached_tokens num_preemptions"),
        ("host_seconds", ctypes.c_double),
    ]


TOKENIZE_SPECIAL, TOKENIZE_BOS = 1, 2
FINISH_NAMES = ("end", "stop", "length", "cancelled")
REQUEST_FINISH_NAMES = (None, "stop", "length", "aborted", "error")
ORDER_NAMES = ("vllm", "transformers", "llama.cpp")

# Plans do not distinguish alignments of addresses and strides beyond this.
WHOLE_ALIGNMENT = 16

# The position of each tensor's address, in 8-byte words of AttentionCall and AttentionGradients.
DATA_WORD = {name: getattr(AttentionTensors, name).offset // 8 for name in TENSOR_NAMES} | {
    name: (AttentionCall.quantised.offset + getattr(QuantisedKv, name).offset) // 8 for name in QUANTISED_NAMES
}
GRADIENT_WORD = {name: getattr(AttentionGradients, name).offset // 8 for name in GRADIENT_NAMES}
