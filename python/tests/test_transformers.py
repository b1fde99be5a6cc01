"""Hugging Face models with attn_implementation="headrace": their logits compared with eager attention's.

The rules are R1 (16-bit dtypes) and R2 (float32) of docs/numerics.md. Both models are compared with a third, of the
same weights and dtype, whose attention is computed in float64 and rounded once: what is left is attention's error.
"""

import re

import numpy as np
import oracle
import pytest
from torch_data import DEVICES, array, name_of, torch

transformers = pytest.importorskip("transformers", minversion="5.8")

import headrace.transformers  # noqa: E402

VOCAB = 131
COMMON = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
WINDOW = 8


def config_of(name):
    t = transformers
    if name == "llama":
        return t.LlamaConfig(**COMMON)
    if name == "qwen2":
        return t.Qwen2Config(**COMMON)
    if name == "qwen2 window":
        return t.Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    if name == "mistral":
        return t.MistralConfig(**COMMON, sliding_window=WINDOW)
    if name == "gemma2":
        return t.Gemma2Config(
            **COMMON, head_dim=16, query_pre_attn_scalar=24, sliding_window=WINDOW, attn_logit_softcapping=2.0
        )
    if name == "gpt_oss":
        return t.GptOssConfig(
            **COMMON, head_dim=16, sliding_window=WINDOW, num_local_experts=2, num_experts_per_tok=2
        )
    return t.GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=128, initializer_range=0.2, bos_token_id=1,
        eos_token_id=None, pad_token_id=0, scale_attn_by_inverse_layer_idx=True,
    )  # fmt: skip


NAMES = ["llama", "qwen2", "qwen2 window", "mistral", "gpt2", "gemma2", "gpt_oss"]


def model_of(name, implementation, dtype=torch.float32, device="cpu"):
    torch.manual_seed(7)
    config = config_of(name)
    config._attn_implementation = implementation
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    torch.manual_seed(8)
    for key, parameter in sorted(model.named_parameters()):
        if "sinks" in key:
            torch.nn.init.normal_(parameter)
    return model.to(dtype).to(device).eval()


def exact_attention(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **others):
    """The oracle: eager attention in float64, rounded once."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(groups, 1) for x in (key, value))
    scores = query.double() @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask.double()
    if s_aux is not None:
        sinks = s_aux.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    probs = scores.softmax(-1)[..., : key.shape[2]]
    return (probs @ value).transpose(1, 2).to(query.dtype).contiguous(), None


transformers.AttentionInterface.register("exact", exact_attention)
transformers.AttentionMaskInterface.register("exact", transformers.masking_utils.eager_mask)


def tokens(batch=2, length=27, seed=0):
    return torch.randint(2, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def count_calls(monkeypatch):
    """Counts the library's calls."""
    from headrace.torch import _eager

    calls = []
    compute = _eager.compute

    def counted(entry, *arguments):
        calls.append(entry.plan.kernel)
        return compute(entry, *arguments)

    monkeypatch.setattr(_eager, "compute", counted)
    return calls


# R1's limits on the mean error relative to eager's (docs/numerics.md): tensor-core kernels round P as eager does.
MEAN_LIMIT, MEAN_LIMIT_ROUNDED = 0.8, 1.25
ROUNDS_P = re.compile("cuda_sm")


def check_logits(ours, eager, exact, dtype, kernels):
    """Compares the positions that count. `kernels`: those that computed ours."""
    exact, ours, eager = array(exact), array(ours), array(eager)
    largest = np.abs(exact).max()
    assert exact.std() > 0.1 * largest > 0, "logits that cannot show an error"
    error, plain = np.abs(ours - exact), np.abs(eager - exact)
    if dtype == torch.float32:
        # R2 is about one attention; layers of a model amplify its last bits, eager's as much as ours.
        assert np.square(error).sum() <= max(
            oracle.MAX_NMSE["float32"] * np.square(exact).sum(), 1.5 * np.square(plain).sum()
        )
        return
    assert error.max() <= plain.max() + oracle._ulp(largest, name_of(dtype))
    assert error.mean() <= (MEAN_LIMIT_ROUNDED if any(map(ROUNDS_P.match, kernels)) else MEAN_LIMIT) * plain.mean()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_prefill_logits_equal_eagers(device, name, dtype, count_calls):
    ids = tokens().to(device)
    with torch.no_grad():
        exact = model_of(name, "exact", dtype, device)(ids).logits
        eager = model_of(name, "eager", dtype, device)(ids).logits
        assert not count_calls
        ours = model_of(name, "headrace", dtype, device)(ids).logits
    assert len(count_calls) == 3
    check_logits(ours, eager, exact, dtype, count_calls)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mistral", "qwen2 window", "gemma2", "gpt_oss"])
def test_windows_softcaps_and_sinks_change_the_logits(device, name):
    """For these models the tests above can distinguish attention with and without them."""
    ids = tokens().to(device)
    model = model_of(name, "headrace", torch.float32, device)
    with torch.no_grad():
        logits = model(ids).logits
        model.config.sliding_window = 10 * WINDOW
        for module in model.modules():
            if getattr(module, "sliding_window", None) is not None:
                module.sliding_window = 10 * WINDOW
        changed = [model(ids).logits]
        for module in model.modules():
            if getattr(module, "attn_logit_softcapping", None) is not None:
                module.attn_logit_softcapping = None
            if getattr(module, "sinks", None) is not None:
                module.sinks.fill_(-100.0)
        changed.append(model(ids).logits)
    for before, after in zip([logits, *changed], changed, strict=False):
        if before is logits or name in ("gemma2", "gpt_oss"):
            assert (after - before).abs().max() > 1e-2 * logits.abs().max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_padded_batches_equal_eagers(device, name):
    """Rows on either side of the batch are padded; the tokens that count have eager's logits."""
    ids = tokens(batch=3).to(device)
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    mask[2, 20:] = 0
    with torch.no_grad():
        exact, eager, ours = (
            m(ids, attention_mask=mask).logits[mask.bool()]
            for m in (
                model_of(name, "exact", torch.float32, device),
                model_of(name, "eager", torch.float32, device),
                model_of(name, "headrace", torch.float32, device),
            )
        )
    check_logits(ours, eager, exact, torch.float32, [])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_generate_equals_eagers(device, name, is_padded, count_calls):
    """Prefill, then token by token with a cache: every step's logits, past the window, and the tokens."""
    ids = tokens(length=6).to(device)
    mask = torch.ones_like(ids)
    if is_padded:
        mask[1, :3] = 0
    arguments = {
        "attention_mask": mask, "max_new_tokens": 14, "do_sample": False, "output_logits": True,
        "return_dict_in_generate": True,
    }  # fmt: skip
    eager_model = model_of(name, "eager", torch.float32, device)
    eager = eager_model.generate(ids, **arguments)
    ours = model_of(name, "headrace", torch.float32, device).generate(ids, **arguments)
    assert len(count_calls) == 3 * 14
    assert torch.equal(ours.sequences, eager.sequences)
    exact = model_of(name, "exact", torch.float32, device).generate(ids, **arguments)
    assert torch.equal(exact.sequences, eager.sequences)
    stacked = [torch.stack(x.logits) for x in (ours, eager, exact)]
    check_logits(*stacked, torch.float32, [])


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_chunked_prefill_and_a_static_cache_equal_eagers(name):
    ids = tokens(length=24)
    for implementation in ("eager", "headrace"):
        model = model_of(name, implementation)
        with torch.no_grad():
            whole = model(ids).logits
            cache = transformers.DynamicCache(config=model.config)
            parts = [model(ids[:, i : i + 8], past_key_values=cache).logits for i in (0, 8, 16)]
            static = transformers.StaticCache(config=model.config, max_cache_len=40)
            fixed = [model(ids[:, i : i + 12], past_key_values=static).logits for i in (0, 12)]
        assert (torch.cat(parts, 1) - whole).abs().max() < 2e-5 * whole.abs().max()
        assert (torch.cat(fixed, 1) - whole).abs().max() < 2e-5 * whole.abs().max()


def test_custom_masks_are_honoured():
    ids = tokens(length=12)
    keep = torch.rand((2, 1, 12, 12), generator=torch.Generator().manual_seed(1)) < 0.6
    keep |= torch.eye(12, dtype=torch.bool)
    added = torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)
    with torch.no_grad():
        eager = model_of("llama", "eager")(ids, attention_mask=added).logits
        ours = model_of("llama", "headrace")
        for mask in (added, keep):
            assert (ours(ids, attention_mask=mask).logits - eager).abs().max() < 2e-5 * eager.abs().max()


def test_bidirectional_models_see_both_sides():
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        initializer_range=0.2,
    )  # fmt: skip
    ids, mask = tokens(), torch.ones((2, 27), dtype=torch.long)
    mask[1, 20:] = 0
    outs = []
    for implementation in ("eager", "headrace"):
        torch.manual_seed(3)
        model = transformers.AutoModel.from_config(config, attn_implementation=implementation).eval()
        with torch.no_grad():
            outs.append([model(ids).last_hidden_state, model(ids, attention_mask=mask).last_hidden_state[mask.bool()]])
    for eager, ours in zip(*outs, strict=True):
        assert (ours - eager).abs().max() < 2e-5 * eager.abs().max()


def test_a_compiled_model_has_no_graph_breaks():
    model = model_of("llama", "headrace")
    ids = tokens()
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert (compiled(ids, use_cache=False).logits - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_three_steps_of_fine_tuning_have_eagers_gradients(dtype):
    """With the same weights in every step. R1 for gradients: the error, relative to attention that is exact in forward
    and backward, is at most 1.5 times eager's and 1.1 times on average."""
    models = {name: model_of("llama", name, dtype).train() for name in ("headrace", "eager", "exact")}
    ours = models["headrace"]
    optimizer = torch.optim.SGD(ours.parameters(), lr=1e-2)
    losses = []
    ids = tokens(batch=4, length=48)
    for _ in range(3):
        grads = {}
        for name, model in models.items():
            model.load_state_dict(ours.state_dict())
            model.zero_grad()
            loss = model(ids, labels=ids).loss
            loss.backward()
            grads[name] = {key: p.grad.double() for key, p in model.named_parameters()}
            losses += [loss.item()] * (name == "headrace")
        # Each parameter's error relative to its largest gradient, so that none is hidden by another's.
        errors = {
            name: torch.cat([
                ((grads[name][key] - exact) / exact.abs().max()).abs().flatten()
                for key, exact in grads["exact"].items()
            ])
            for name in ("headrace", "eager")
        }  # fmt: skip
        assert all(g.std() > 1e-3 * g.abs().max() > 0 for g in grads["exact"].values()), "gradients that show nothing"
        if dtype == torch.float32:
            assert errors["headrace"].max() <= 1e-5
        else:
            assert errors["headrace"].max() <= 1.5 * errors["eager"].max()
            assert errors["headrace"].mean() <= 1.1 * errors["eager"].mean()
        optimizer.step()
    assert len(set(losses)) == 3, "steps that do not change the model"


def test_continuous_batching_is_refused():
    with pytest.raises(NotImplementedError, match="with continuous batching: must be an implementation that"):
        headrace.transformers.headrace_attention(None, *(torch.ones(1, 1, 2, 4),) * 3, None, cache=object())
