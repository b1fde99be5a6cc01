"""FlashAttention-3's keywords of flash_attn_func and flash_attn_varlen_func, in terms of those of FlashAttention-2."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ._backward import Parts

FP8 = torch.float8_e4m3fn


class Descales(NamedTuple):
    q_descale: torch.Tensor | None
    k_descale: torch.Tensor | None
    v_descale: torch.Tensor | None


def is_fp8(x: torch.Tensor) -> bool:
    """False for what is no tensor, which later checks name."""
    return isinstance(x, torch.Tensor) and x.dtype == FP8


def refuse_margin(sm_margin: int) -> None:
    if sm_margin:
        raise NotImplementedError(f"sm_margin={sm_margin}: kernels here use every multiprocessor; leave sm_margin out")


def with_qv(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qv: torch.Tensor, scale: float | None
) -> tuple[Parts, float]:
    """q k^T + qv v^T is one product of longer heads. k and v are copied side by side."""
    if qv.shape[:-1] != q.shape[:-1] or qv.shape[-1] != v.shape[-1]:
        raise ValueError(
            f"qv.shape={tuple(qv.shape)}: must be {(*q.shape[:-1], v.shape[-1])}, as q with the head_dim of v"
        )
    if scale is None:
        scale = (q.shape[-1] + v.shape[-1]) ** -0.5
    return (torch.cat((q, qv), -1), torch.cat((k, v), -1), v), scale


def widened(name: str, x: torch.Tensor, descale: torch.Tensor | None, cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """bfloat16 values of float8_e4m3fn codes [(batch, seqlen or total), heads, dim]."""
    if descale is None:
        return x.to(torch.bfloat16)  # exact
    batch = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    if descale.dim() != 2 or descale.shape[0] != batch or x.shape[-2] % max(descale.shape[1], 1):
        raise ValueError(f"{name}.shape={tuple(descale.shape)}: must be [batch, num_kv_heads], with batch={batch}")
    scale = descale.repeat_interleave(x.shape[-2] // descale.shape[1], 1)  # one of each head
    if cu_seqlens is None:
        scale = scale[:, None]
    else:
        rows = torch.arange(x.shape[0], device=x.device)
        scale = scale[torch.bucketize(rows, cu_seqlens[1:].long(), right=True).clamp(max=batch - 1)]
    return (x.float() * scale[..., None]).to(torch.bfloat16)


def of_codes(parts: Parts, descales: Descales, cu_q: torch.Tensor | None, cu_k: torch.Tensor | None) -> Parts:
    """q, k and v of float8_e4m3fn in bfloat16, the dtype of FlashAttention-3's result; others as they are."""
    are_codes = {x.dtype == FP8 for x in parts}
    if are_codes == {False}:
        for name, descale in descales._asdict().items():
            if descale is not None:
                raise ValueError(f"{name}: given, but q, k and v are {parts[0].dtype}, no codes; leave {name} out")
        return parts
    if len(are_codes) > 1:
        dtypes = ", ".join(str(x.dtype) for x in parts)
        raise ValueError(f"dtypes of q, k and v: {dtypes}: must all be float8_e4m3fn, or none; convert them")
    q, k, v = (
        widened(name, x, descale, cu)
        for (name, descale), x, cu in zip(descales._asdict().items(), parts, (cu_q, cu_k, cu_k))
    )
    return q, k, v


def equal_offsets(x: torch.Tensor) -> torch.Tensor:
    """cu_seqlens of a dense batch [batch, seqlen, ..]."""
    return torch.arange(x.shape[0] + 1, device=x.device, dtype=torch.int32) * x.shape[1]


def dense(result: Any, batch: int, seqlen: int) -> Any:
    """out and lse of a ragged batch as those of a dense one."""
    if isinstance(result, torch.Tensor):
        return result.unflatten(0, (batch, seqlen))
    out, lse, *rest = result
    return (out.unflatten(0, (batch, seqlen)), lse.unflatten(1, (batch, seqlen)).transpose(0, 1), *rest)


def refuse_pages(block_table: torch.Tensor | None) -> None:
    if block_table is not None:
        raise NotImplementedError(
            "block_table with qv or float8_e4m3fn queries: not supported here; flash_attn_with_kvcache takes caches of "
            "codes, and attention() a cache that holds k and v side by side"
        )


def operands(
    parts: Parts,
    qv: torch.Tensor | None,
    descales: Descales,
    scale: float | None,
    cu_q: torch.Tensor | None = None,
    cu_k: torch.Tensor | None = None,
) -> tuple[Parts, float | None]:
    """q, k, v and softmax_scale of a call without qv and descales."""
    parts = of_codes(parts, descales, cu_q, cu_k)
    return (parts, scale) if qv is None else with_qv(*parts, qv, scale)
