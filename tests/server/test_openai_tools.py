"""Tools as the openai package sends and reads them. The weights are random: a grammar makes them call."""

import json
from typing import Literal

import openai
import pydantic
import pytest
from conftest import client_of
from test_openai import ASK, text_of

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/digit"}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"digit": {"enum": [1, 2, 3]}},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "description": "The time."}}
NAMED = {"type": "function", "function": {"name": "add"}}
MORE = ASK | {"max_tokens": 100, "tools": [ADD, NOW]}


@pytest.fixture(scope="module", params=["qwen2.5", "llama3.1", "mistral-nemo"])
def template(request):
    return request.param


@pytest.fixture(scope="module")
def server(start, long_model, template):
    with start("--template", template, model=long_model) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as client:
        yield client


def check(call, template):
    is_mistral = template.startswith("mistral")
    assert (len(call.id) == 9 and call.id.isalnum()) if is_mistral else call.id.startswith("call_")
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    if call.function.name == "now":
        assert arguments == {}
    else:
        assert call.function.name == "add" and arguments["a"] in [1, 2, 3] and arguments["b"] in ["x", "y"]


@pytest.mark.parametrize("choice, names", [("required", {"add", "now"}), (NAMED, {"add"})])
def test_a_call_that_is_asked_for_is_made(client, template, choice, names):
    found = set()
    for seed in range(12):
        answer = client.chat.completions.create(**MORE, tool_choice=choice, seed=seed).choices[0]
        if answer.finish_reason == "length":
            continue
        assert answer.finish_reason == "tool_calls" and answer.message.content is None
        [call] = answer.message.tool_calls
        check(call, template)
        found.add(call.function.name)
        chunks = list(client.chat.completions.create(**MORE, tool_choice=choice, seed=seed, stream=True))
        deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
        first, *later = deltas
        assert (first.index, first.type, first.function.name) == (0, "function", call.function.name) and first.id
        assert all((delta.index, delta.id, delta.function.name) == (0, None, None) for delta in later)
        assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments
        assert chunks[-1].choices[0].finish_reason == "tool_calls" and not text_of(chunks)
    assert found == names


def test_n_answers_call_each(client):
    choices = client.chat.completions.create(**MORE, tool_choice=NAMED, n=3, seed=1).choices
    ids = [call.id for choice in choices for call in choice.message.tool_calls or []]
    assert len(ids) == len(set(ids)) >= 2


def test_parse_and_stream_give_pydantic_arguments(client):
    class Add(pydantic.BaseModel):
        a: Literal[1, 2]
        b: bool

    options = ASK | {"max_tokens": 100, "tools": [openai.pydantic_function_tool(Add)], "tool_choice": "required"}
    for seed in range(20):
        try:
            parsed = client.chat.completions.parse(**options, seed=seed).choices[0].message.tool_calls[0]
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(parsed.function.parsed_arguments, Add)
        with client.chat.completions.stream(**options, seed=seed) as stream:
            last = stream.get_final_completion().choices[0].message.tool_calls[0]
        assert last.function.parsed_arguments == parsed.function.parsed_arguments
        return
    raise AssertionError("no answer ends")


def test_the_model_may_answer_with_text(client):
    for options in [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": False}]:
        message = client.chat.completions.create(**MORE | {"max_tokens": 5}, **options).choices[0].message
        assert message.content and message.tool_calls is None
    with_tools = client.chat.completions.create(**MORE).usage.prompt_tokens
    without = client.chat.completions.create(**MORE, tool_choice="none").usage.prompt_tokens
    assert with_tools > without + 100


def test_calls_and_results_are_part_of_the_conversation(client, template):
    call = {"id": "callNo001", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":"x"}'}}
    num_calls = 1 if template == "llama3.1" else 2
    turns = [*ASK["messages"], {"role": "assistant", "tool_calls": [call] * num_calls}]
    result = [{"role": "tool", "tool_call_id": "callNo001", "content": "x" * 50}] * num_calls
    sizes = [client.chat.completions.create(**MORE | {"messages": messages}).usage.prompt_tokens
             for messages in [ASK["messages"], turns, turns + result]]
    assert sizes[0] + 30 * num_calls < sizes[1] < sizes[2] - 50 * num_calls


def test_an_answer_goes_on_as_a_conversation(client):
    messages = list(ASK["messages"])
    for seed in range(20):
        answer = client.chat.completions.create(**MORE | {"messages": messages}, tool_choice="required", seed=seed)
        if answer.choices[0].finish_reason == "length":
            continue
        [call] = answer.choices[0].message.tool_calls
        messages += [answer.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        assert client.chat.completions.create(**MORE | {"messages": messages}).choices
        return
    raise AssertionError("no answer ends")


@pytest.mark.parametrize("options, param", [
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
    ({"tool_choice": "required", "tools": [{"type": "function", "function": {
        "name": "f", "parameters": {"properties": {"a": {"$ref": "#/$defs/none"}}}}}]}, "tools"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {
        "name": "f", "arguments": "["}}]}]}, "messages[0].tool_calls[0].function.arguments"),
    ({"extra_body": {"functions": [NOW["function"]]}}, "functions"),
    ({"messages": [{"role": "tool", "content": "", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
])
def test_what_is_wrong_is_a_bad_request(client, options, param):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**MORE | options)
    assert raised.value.param == param


def test_a_template_without_tools_refuses_them(start):
    with start("--template", "smollm2") as server, pytest.raises(openai.BadRequestError, match="smollm2") as raised:
        client_of(server).chat.completions.create(**MORE)
    assert raised.value.param == "tools"
