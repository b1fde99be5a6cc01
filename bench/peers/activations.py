#!/usr/bin/env python3
"""Records a model's attention inputs: q, k and v (after RoPE) of some layers of a GGUF file, computed by transformers
on the CPU from this repository's documents. For features_cuda.py --activations.

    python bench/peers/activations.py --model "$(python python/headrace/_fetch_model.py)" --out activations.pt

Writes {layer: (q, k, v)}, [seqlen, heads, head_dim] in bf16. Needs torch, transformers and gguf.
"""

import argparse
import pathlib

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def documents():
    """About 100 KB of English text with code."""
    named = [ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    paths = [*named, *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("src/**/*.md"))]
    return "\n\n".join(path.read_text() for path in paths)


def record(model, tokens, layers):
    kept = {}

    def attention(module, query, key, value, mask, **options):
        if module.layer_idx in layers:
            rows = (x[0].transpose(0, 1) for x in (query, key, value))  # [seqlen, heads, head_dim]
            kept[module.layer_idx] = tuple(x.to(torch.bfloat16).contiguous() for x in rows)
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    transformers.AttentionInterface.register("recorded", attention)
    model.set_attn_implementation("recorded")
    with torch.no_grad():
        model.model(tokens)
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a GGUF file")
    parser.add_argument("--layers", type=lambda text: [int(i) for i in text.split(",")], default=[4, 24])
    parser.add_argument("--seqlen", type=int, default=8192, help="number of tokens")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    files = {"pretrained_model_name_or_path": args.model.parent, "gguf_file": args.model.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**files, dtype=torch.float32)
    tokens = transformers.AutoTokenizer.from_pretrained(**files)(documents(), return_tensors="pt").input_ids
    if tokens.shape[1] < args.seqlen:
        parser.error(f"the documents have {tokens.shape[1]} tokens: --seqlen must not exceed that")
    kept = record(model, tokens[:, : args.seqlen], args.layers)
    torch.save(kept, args.out)
    for layer, (q, k, _) in sorted(kept.items()):
        scores = (q[:256].float().transpose(0, 1) @ k[:256, 0].float().T) * q.shape[-1] ** -0.5
        print(f"layer {layer}: {tuple(q.shape)}, {tuple(k.shape)}; scores of the first 256 tokens: standard deviation "
              f"{scores.std():.2f}, largest {scores.max():.1f}")


if __name__ == "__main__":
    main()
