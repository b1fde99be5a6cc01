"""The compared calls. Names describe them: prefill_f32_causal_b1_h16_s4096_d64."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str  # "prefill" or "decode"
    dtype: str  # "f32" or "bf16"
    is_causal: bool
    batch: int
    num_heads: int
    num_kv_heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int

    @property
    def name(self):
        mask = "causal" if self.is_causal else "full"
        heads = f"h{self.num_heads}"
        if self.num_kv_heads != self.num_heads:
            heads += f"kv{self.num_kv_heads}"
        return (
            f"{self.kind}_{self.dtype}_{mask}_b{self.batch}_{heads}_s{self.seqlen_k}"
            f"_d{self.head_dim}"
        )

    @property
    def group(self):
        return f"{self.kind}_{self.dtype}"

    def flops(self):
        """4 * head_dim per visible (query, key) pair; causal cases are square."""
        pairs = self.seqlen_q * self.seqlen_k
        if self.is_causal:
            pairs = self.seqlen_q * (self.seqlen_q + 1) // 2
        return 4 * self.batch * self.num_heads * pairs * self.head_dim

    def bytes(self):
        """q, k, v and out, each once."""
        element = 4 if self.dtype == "f32" else 2
        q_and_out = 2 * self.seqlen_q * self.num_heads
        k_and_v = 2 * self.seqlen_k * self.num_kv_heads
        return self.batch * (q_and_out + k_and_v) * self.head_dim * element

    def smaller(self):
        """The same call with sequences short enough to check every row; not a multiple of a tile."""
        seqlen_k = min(self.seqlen_k, 331)
        seqlen_q = seqlen_k if self.kind == "prefill" else self.seqlen_q
        return dataclasses.replace(self, seqlen_q=seqlen_q, seqlen_k=seqlen_k)


PREFILL_SHAPES = (  # batch, heads, seqlen, head_dim
    (1, 8, 128, 64),
    (4, 16, 512, 64),
    (1, 16, 1024, 64),
    (1, 16, 4096, 64),
    (1, 8, 4096, 128),
    (1, 8, 16384, 128),
    (1, 4, 1024, 256),
)
DECODE_SEQLENS = (512, 4096, 32768)
DECODE_BATCHES = (1, 8)
DTYPES = ("f32", "bf16")


def all_cases():
    cases = []
    for dtype in DTYPES:
        for batch, heads, seqlen, head_dim in PREFILL_SHAPES:
            for is_causal in (False, True):
                cases.append(
                    Case("prefill", dtype, is_causal, batch, heads, heads, seqlen, seqlen, head_dim)
                )
    for dtype in DTYPES:
        for batch in DECODE_BATCHES:
            for seqlen_k in DECODE_SEQLENS:
                cases.append(Case("decode", dtype, False, batch, 32, 8, 1, seqlen_k, 128))
    return cases
