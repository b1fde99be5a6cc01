"""A GGUF file of the families llama and qwen2 as a transformers network in float32.

The `gguf` package dequantizes the weights, so the network computes the file's function up to float32 rounding."""

import gguf
import numpy
import torch
import transformers

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
}


class Keys:
    """The metadata of a file as plain values."""

    def __init__(self, reader):
        self._reader = reader
        self.family = self("general.architecture")

    def __call__(self, name, default=None):
        field = self._reader.get_field(name)
        return default if field is None else field.contents()

    def model(self, name, default=None):
        return self(f"{self.family}.{name}", default)


def config_of(keys, names, rope_scaling=None):
    """The configuration described by the keys. A scaled RoPE is stored as a tensor of factors, from which the formula
    cannot be recovered: callers pass `rope_scaling`, the dictionary of transformers, for such files."""
    num_heads = keys.model("attention.head_count")
    hidden_size = keys.model("embedding_length")
    head_dim = keys.model("attention.key_length", hidden_size // num_heads)
    rope = {"rope_type": "default", **(rope_scaling or {})}
    rope["rope_theta"] = keys.model("rope.freq_base", 10000.0)
    if ("rope_freqs.weight" in names) != (rope_scaling is not None):
        raise ValueError("rope_scaling must be given exactly for files with the tensor rope_freqs.weight")
    arguments = {} if keys.family == "qwen2" else {"head_dim": head_dim, "attention_bias": False, "mlp_bias": False}
    return FAMILIES[keys.family][0](
        vocab_size=len(keys("tokenizer.ggml.tokens")),
        hidden_size=hidden_size,
        intermediate_size=keys.model("feed_forward_length"),
        num_hidden_layers=keys.model("block_count"),
        num_attention_heads=num_heads,
        num_key_value_heads=keys.model("attention.head_count_kv", num_heads),
        max_position_embeddings=keys.model("context_length"),
        rms_norm_eps=keys.model("attention.layer_norm_rms_epsilon"),
        rope_parameters=rope,
        tie_word_embeddings="output.weight" not in names,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
        **arguments,
    )


def halves_from_pairs(rows, num_heads):
    """GGUF's llama files order the rows of Q and K such that rotated pairs are neighbours (2i, 2i + 1); transformers
    rotates (i, i + head_dim / 2)."""
    head_dim = rows.shape[0] // num_heads
    return rows.reshape(num_heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def pairs_from_halves(rows, num_heads):
    head_dim = rows.shape[0] // num_heads
    return rows.reshape(num_heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def transformers_name(name):
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    return f"{TOP_NAMES[parts[0]]}.{parts[1]}"


def weights_of(reader, config, family):
    weights = {}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if family == "llama" and ".attn_q." in tensor.name:
            values = halves_from_pairs(values, config.num_attention_heads)
        if family == "llama" and ".attn_k." in tensor.name:
            values = halves_from_pairs(values, config.num_key_value_heads)
        weights[transformers_name(tensor.name)] = torch.from_numpy(numpy.array(values))
    return weights


def load(path, rope_scaling=None):
    """(network in float32, metadata)."""
    reader = gguf.GGUFReader(path)
    keys = Keys(reader)
    names = {tensor.name for tensor in reader.tensors}
    config = config_of(keys, names, rope_scaling)
    network = FAMILIES[keys.family][1](config).float().eval()
    missing, unexpected = network.load_state_dict(weights_of(reader, config, keys.family), strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise ValueError(f"{path}: missing {missing}, unexpected {unexpected}")
    network.tie_weights()
    return network, keys


@torch.no_grad()
def logits_of_windows(network, tokens, window):
    """float32 [positions, vocab]: each window of the tokens is processed independently."""
    parts = [
        network(torch.tensor([tokens[start : start + window]])).logits[0].numpy()
        for start in range(0, len(tokens), window)
    ]
    return numpy.concatenate(parts)


@torch.no_grad()
def greedy(network, prompt, count, ends):
    """Up to `count` tokens with the logits they were chosen from; stops after a token in `ends`."""
    cache, tokens = None, prompt
    for _ in range(count):
        answer = network(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        logits = answer.logits[0, -1].numpy()
        token = int(logits.argmax())
        yield token, logits
        if token in ends:
            return
        cache, tokens = answer.past_key_values, [token]


def chat_text(keys, messages):
    """The prompt for (role, content) pairs by the file's own chat template."""
    import jinja2

    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(keys("tokenizer.chat_template"))
    return template.render(
        messages=[{"role": role, "content": content} for role, content in messages], add_generation_prompt=True
    )
