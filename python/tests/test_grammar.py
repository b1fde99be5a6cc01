"""Structured output of headrace.LLM, Engine and AsyncEngine, on a tiny model with random weights."""

import asyncio
import dataclasses
import gc
import json
import pathlib
import re
import weakref

import pytest

from headrace import LLM, Engine, SamplingParams, _grammar

FILE = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "tiny" / "tiny_llama3_f16.gguf"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="the models are in the tree")
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "tags": {"type": "array", "items": {"const": 1}, "maxItems": 2}},
    "required": ["name", "tags"],
}
PROMPTS = ["Hi", [1, 2, 3], "Once upon a time", "The sky"]


@pytest.fixture(scope="module")
def llm():
    return LLM(FILE, num_threads=2)


def is_person(text):
    person = json.loads(text)
    names, ones = person["name"] in ("Ada", "Bob"), person["tags"] in ([], [1], [1, 1])
    return names and ones and list(person) == ["name", "tags"]


# Random weights like white space, of which JSON may have any; the seeds are some that end.
WAYS = {
    "schema": (SamplingParams(json_schema={"enum": ["red", 7, None]}, max_tokens=20), r'"red"|7|null'),
    "text of a schema": (SamplingParams(json_schema='{"enum": [true]}', max_tokens=20), "true"),
    "a schema that is true": (SamplingParams(json_schema=True, max_tokens=9), r"(?s).+"),
    "regex": (SamplingParams(regex="(yes|no)!{2}", max_tokens=20), "(yes|no)!!"),
    "unicode": (SamplingParams(regex="é+x", max_tokens=40, temperature=1.5, seed=1), "é+x"),
    "gbnf": (SamplingParams(grammar='root ::= "a" [b-d] "e"', max_tokens=20), "a[bcd]e"),
}


@pytest.mark.parametrize("way", WAYS)
def test_completions_match_alone_in_a_batch_async_and_in_pieces(llm, way):
    params, pattern = WAYS[way]
    alone = [llm.generate(prompt, params) for prompt in PROMPTS]
    for generation in alone:
        completion = generation.completions[0]
        if completion.finish_reason == "end":
            assert re.fullmatch(pattern, completion.text)
    assert "end" in [x.completions[0].finish_reason for x in alone] or params.json_schema is True
    assert llm.generate(PROMPTS, params) == alone
    assert asyncio.run(llm.generate_async(PROMPTS, params)) == alone
    assert "".join(llm.stream(PROMPTS[0], params)) == alone[0].completions[0].text

    async def pieces():
        return "".join([piece async for piece in llm.stream_async(PROMPTS[0], params)])

    assert asyncio.run(pieces()) == alone[0].completions[0].text


def test_objects_are_valid(llm):
    params = SamplingParams(json_schema=PERSON, temperature=1.0, n=32, max_tokens=120)
    completions = llm.generate("Hi", params).completions
    ended = [c.text for c in completions if c.finish_reason == "end"]
    assert ended and all(map(is_person, ended))


def test_an_engine_has_requests_of_several_grammars(llm):
    engine = Engine(llm, max_num_seqs=4)
    given = [WAYS["regex"][0], SamplingParams(max_tokens=5, ignore_eos=True), WAYS["gbnf"][0], WAYS["regex"][0]]
    ids = [engine.add("Hi", params) for params in given]
    texts = dict.fromkeys(ids, "")
    for output in engine.stream():
        texts[output.id] += output.text
    assert re.fullmatch("(yes|no)!!", texts[ids[0]]) and texts[ids[3]] == texts[ids[0]]
    assert texts[ids[1]] == llm.generate("Hi", given[1]).completions[0].text
    assert re.fullmatch("a[bcd]e", texts[ids[2]])


def test_a_model_keeps_the_grammars_used_last(llm, monkeypatch):
    monkeypatch.setattr(_grammar, "_KEPT", 2)
    grammars = _grammar.Grammars(llm._handle)
    a, b, c = (SamplingParams(regex=letter) for letter in "abc")
    assert grammars.of(SamplingParams()) is None
    first, second = grammars.of(a), grammars.of(b)
    assert grammars.of(dataclasses.replace(a, max_tokens=3)) is first
    assert grammars.of(SamplingParams(grammar="root ::= [a]")) is not first
    assert grammars.of(a) is first and grammars.of(b) is not second
    assert grammars.of(c) is not None and len(grammars._compiled) == 2
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def test_a_grammar_may_go_while_a_text_is_generated(llm, monkeypatch):
    monkeypatch.setattr(_grammar, "_KEPT", 0)
    engine = Engine(llm, max_num_seqs=2)
    id = engine.add("Hi", WAYS["regex"][0])
    gc.collect()
    text = "".join(output.text for output in engine.stream() if output.id == id)
    assert re.fullmatch("(yes|no)!!", text)


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        ({"regex": "("}, ValueError, "regex: line 1, column 2: "),
        ({"regex": 3}, TypeError, "regex: must be a str, got int"),
        ({"grammar": b"root"}, TypeError, "grammar: must be a str, got bytes"),
        ({"grammar": "a ::= b"}, ValueError, "grammar: no rule 'b'; add b ::= ..."),
        ({"json_schema": "{"}, ValueError, "json_schema: line 1, column 2: "),
        ({"json_schema": 3}, TypeError, "json_schema: must be a str or a dict, got int"),
        ({"json_schema": {"x": 1}}, NotImplementedError, "keyword 'x' is not supported"),
        ({"regex": "a", "json_schema": True}, ValueError, "json_schema and regex: pass one of them"),
        ({"regex": "a", "ignore_eos": True}, ValueError, "a text that matches a grammar ends with it"),
    ],
)
def test_errors_name_the_argument(llm, params, error, text):
    for call in (llm.generate, llm.stream, Engine(llm).add):
        with pytest.raises(error, match=re.escape(text)):
            list(call("Hi", SamplingParams(**params)))
