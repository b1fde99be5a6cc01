"""headrace.LLM on the tiny models of tests/golden, whose weights are random."""

import dataclasses
import gc
import json
import pathlib
import threading

import numpy as np
import pytest

import headrace
from headrace import LLM, SamplingParams, _grammar, _sampling

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "tiny"
pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the models are in the tree")
MODELS = json.loads((GOLDEN / "tiny.json").read_text())["models"] if GOLDEN.is_dir() else []
FILE = GOLDEN / "tiny_llama3_f16.gguf"
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
WARM = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def llm():
    return LLM(FILE, num_threads=2, exact=True)


# Another value than the default for every field, and where it arrives.
SETTINGS = {
    "n": 3, "max_tokens": 7, "temperature": 0.75, "top_p": 0.5, "top_k": 9, "min_p": 0.25, "repetition_penalty": 1.5,
    "presence_penalty": 0.125, "frequency_penalty": 0.375, "logit_bias": {4: 2.0, 5: -1.5}, "seed": 11,
    "stop": ["a", "bc"], "ignore_eos": True, "order": "llama.cpp",
}  # fmt: skip

GRAMMARS = ("json_schema", "regex", "grammar")  # test_grammar.py


def arrived(params):
    """The fields of SamplingParams as the library gets them."""
    options = _sampling.Options(params, _grammar.Grammars(None))
    assert options.c.grammar is None
    c, sampling = options.c, options.c.sampling.contents
    of_c = {"n": options.n, "max_tokens": c.max_new_tokens or None, "ignore_eos": bool(c.ignore_end)}
    of_c["stop"] = [c.stop[i].decode() for i in range(c.num_stop)]
    of_c["logit_bias"] = {b.token: b.bias for b in sampling.logit_bias[: sampling.num_logit_bias]}
    of_c["order"] = ("vllm", "transformers", "llama.cpp")[sampling.order]
    return of_c | {name: getattr(sampling, name) for name in SETTINGS.keys() - of_c.keys()}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_sampling_parameter_sets_its_field_alone(name):
    fields = dataclasses.asdict(SamplingParams()) | {"stop": []}
    assert [fields.pop(grammar) for grammar in GRAMMARS] == [None] * 3
    assert SETTINGS.keys() == fields.keys()
    defaults = arrived(SamplingParams())
    assert defaults == fields
    assert SETTINGS[name] != defaults[name], "the case says nothing"
    assert arrived(SamplingParams(**{name: SETTINGS[name]})) == defaults | {name: SETTINGS[name]}


@pytest.mark.parametrize("model", MODELS, ids=[m["name"] for m in MODELS])
def test_logits_are_those_of_transformers(model):
    got = LLM(GOLDEN / model["file"], num_threads=2, exact=True).logits(model["tokens"])
    expected = np.fromfile(GOLDEN / model["logits"], np.float32).reshape(-1, model["vocab_size"])
    assert got.dtype == np.float32 and got.shape == expected.shape
    # The bound of src/engine/session_test.cc, for float sums in another order.
    assert np.abs(got - expected).max() <= 64 * 2**-23 * model["largest_logit"]


def test_greedy_generation_takes_the_largest_logits(llm):
    out = llm.generate("Hi", GREEDY)
    (completion,) = out.completions
    assert len(completion.tokens) == 12 and completion.finish_reason == "length"
    logits = llm.logits(out.prompt_tokens + completion.tokens).astype(np.float64)
    steps = logits[len(out.prompt_tokens) - 1 : -1]
    assert completion.tokens == steps.argmax(axis=1).tolist()
    logprobs = steps.max(axis=1) - np.log(np.exp(steps).sum(axis=1))
    # Decode and prefill differ by rounding: 12 logits of size ~10 in float.
    assert completion.logprob == pytest.approx(logprobs.sum(), abs=1e-3)
    assert out.text == completion.text


def test_prompts_are_texts_tokens_or_lists_of_these(llm):
    tokens = llm.tokenize("Hi")
    one = llm.generate("Hi", GREEDY)
    assert one.prompt_tokens == tokens
    assert llm.generate(tokens, GREEDY) == one
    assert llm.generate(np.array(tokens), GREEDY) == one
    assert llm.generate(["Hi", tokens], GREEDY) == [one, one]
    assert llm.generate([], GREEDY) == []


def test_completion_i_is_that_of_seed_plus_i(llm):
    several = llm.generate("Hi", SamplingParams(**{**vars(WARM), "n": 3})).completions
    assert len({tuple(c.tokens) for c in several}) == 3
    for i, completion in enumerate(several):
        (one,) = llm.generate("Hi", SamplingParams(**{**vars(WARM), "seed": WARM.seed + i})).completions
        assert one == completion


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_stream_gives_the_pieces_of_the_text(llm, params):
    pieces = list(llm.stream("Hi", params))
    assert len(pieces) > 1 and "".join(pieces) == llm.generate("Hi", params).text


def test_a_closed_stream_ends_its_thread_and_an_unused_one_has_none(llm):
    before = threading.active_count()
    unused = llm.stream("Hi", GREEDY)
    stream = llm.stream("Hi", SamplingParams(ignore_eos=True))
    next(stream)
    stream.close()
    del unused
    gc.collect()
    assert threading.active_count() == before


def test_an_error_of_a_stream_is_raised_where_it_is_read(llm):
    with pytest.raises(ValueError, match="token"):
        list(llm.stream([10**6], GREEDY))


def test_stop_strings_end_a_completion(llm):
    text = llm.generate("Hi", GREEDY).text
    stop = next(text[i : i + 2] for i in range(1, len(text)) if text[i : i + 2].isascii())
    for given in (stop, [stop, "never"]):
        (completion,) = llm.generate("Hi", SamplingParams(max_tokens=12, ignore_eos=True, stop=given)).completions
        assert completion.finish_reason == "stop"
        assert completion.text == text[: text.index(stop)]


def test_a_bias_bans_or_forces_tokens(llm):
    forced = SamplingParams(max_tokens=3, logit_bias={65: 1e4})
    assert llm.generate("Hi", forced).completions[0].tokens == [65] * 3
    first = llm.generate("Hi", GREEDY).completions[0].tokens[0]
    banned = SamplingParams(max_tokens=1, ignore_eos=True, logit_bias={first: float("-inf")})
    assert llm.generate("Hi", banned).completions[0].tokens != [first]


def test_a_chat_is_the_generation_of_its_tokens(llm):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    tokens = llm.chat_tokens(messages, template="chatml")
    answer = llm.chat(messages, GREEDY, template="chatml")
    assert answer == llm.generate(tokens, GREEDY)
    assert "".join(llm.stream_chat(messages, GREEDY, template="chatml")) == answer.text
    closed = llm.chat_tokens(messages, template="chatml", add_generation_prompt=False)
    assert len(closed) < len(tokens) and tokens[: len(closed)] == closed


def test_text_survives_tokens(llm):
    text = "Any text: äöü \0 end"
    assert llm.detokenize(llm.tokenize(text, bos=False)) == text
    assert llm.tokenize("") == llm.tokenize("", bos=True)
    assert llm.detokenize([]) == ""


def test_info_describes_the_file(llm):
    info = llm.info
    assert (info.architecture, info.vocab_size, info.exact, info.num_threads) == ("llama", 288, True, 2)
    assert info.fast is False
    assert llm.max_context == info.context_length
    assert LLM(FILE, max_context=20).max_context == 20


def test_random_models_need_no_file():
    assert "smollm2-135m" in headrace.model_shapes()
    llm = LLM.random("smollm2-135m", weight_type="Q4_0", seed=1, max_context=64)
    assert (llm.info.num_layers, llm.info.weight_types) == (30, "Q4_0 211, F32 61")
    logits = llm.logits([1, 2, 3])
    assert np.isfinite(logits).all() and 0.5 < logits.std() < 2
    other = LLM.random("smollm2-135m", weight_type="Q4_0", seed=2, max_context=64)
    assert not np.array_equal(other.logits([1, 2, 3]), logits)


def test_threads_share_a_model(llm):
    expected = llm.generate("Hi", WARM)
    results = []
    threads = [threading.Thread(target=lambda: results.append(llm.generate("Hi", WARM))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"n": 0}, ValueError, "n=0: must be 1 to 1024"),
        ({"n": 2}, ValueError, "temperature"),
        ({"max_tokens": 0}, ValueError, "max_tokens=0: must be at least 1"),
        ({"temperature": -1.0}, ValueError, "temperature"),
        ({"temperature": "x"}, TypeError, "temperature='x': must be a number"),
        ({"top_p": 0.0}, ValueError, "top_p"),
        ({"top_k": -1}, ValueError, "top_k"),
        ({"seed": -1}, ValueError, "seed=-1: must be 0 to"),
        ({"order": "x"}, ValueError, "order='x': must be one of 'vllm', 'transformers', 'llama.cpp'"),
        ({"logit_bias": {10**6: 1.0}}, ValueError, "logit_bias"),
        ({"stop": "a\0b"}, ValueError, "zero byte at 1"),
        ({"stop": [5]}, TypeError, r"stop\[0\]: must be a str, got int"),
    ],
)
def test_sampling_errors_name_the_argument(llm, changes, error, text):
    with pytest.raises(error, match=text):
        llm.generate("Hi", SamplingParams(**changes))
    if "n" not in changes:
        with pytest.raises(error, match=text):
            list(llm.stream("Hi", SamplingParams(**changes)))


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda llm: LLM("/absent.gguf"), RuntimeError, "/absent.gguf: cannot be opened"),
        (lambda llm: LLM(__file__), RuntimeError, "not a GGUF file"),
        (lambda llm: LLM("a\0b"), ValueError, "zero byte"),
        (lambda llm: LLM(FILE, device="sm90:132"), ValueError, "device='sm90:132': must be"),
        (lambda llm: LLM(FILE, num_threads=0), ValueError, "num_threads=0: must be at least 1"),
        (lambda llm: LLM(FILE, max_context=10**6), ValueError, "max_context=1000000: must be 1 to"),
        (lambda llm: LLM(FILE, cache_dtype="f8"), ValueError, "cache_dtype='f8': must be one of"),
        (lambda llm: LLM.random("llama"), ValueError, 'name="llama": must be one of smollm2-135m'),
        (lambda llm: LLM.random("smollm2-135m", weight_type="Q9"), ValueError, 'weight_type="Q9"'),
        (lambda llm: LLM.random("smollm2-135m", seed=-1), ValueError, "seed=-1"),
        (lambda llm: llm.generate([[]]), ValueError, "prompt: has no tokens"),
        (lambda llm: llm.generate([10**6]), ValueError, "token"),
        (lambda llm: llm.generate([1] * 1000), ValueError, "1000 tokens exceed max_context"),
        (lambda llm: llm.stream("Hi", SamplingParams(n=2)), ValueError, "n=2: a stream has one completion"),
        (lambda llm: llm.logits([]), ValueError, "0 tokens, expected 1 to max_context"),
        (lambda llm: llm.tokenize(5), TypeError, "text: must be a str, got int"),
        (lambda llm: llm.detokenize([10**6]), ValueError, "1000000"),
        (lambda llm: llm.chat([{"role": "user"}]), ValueError, r"messages\[0\] has the keys \['role'\]"),
        (lambda llm: llm.chat([{"role": "x", "content": ""}], template="chatml"), ValueError, "role='x'"),
        (lambda llm: llm.chat([{"role": "user", "content": "a\0"}]), ValueError, "content: has a zero byte"),
        (lambda llm: llm.chat([{"role": "user", "content": ""}], template="x"), ValueError, "template='x': unknown"),
    ],
)
def test_errors_name_the_argument(llm, call, error, text):
    with pytest.raises(error, match=text):
        call(llm)
