"""Structured outputs as the openai package asks for them."""

import json
from enum import Enum
from typing import Literal

import openai
import pydantic
import pytest
from test_openai import ASK, TEXT, text_of


class Colour(str, Enum):
    red = "red"
    blue = "blue"


class Part(pydantic.BaseModel):
    colour: Colour
    is_new: bool


class Thing(pydantic.BaseModel):
    kind: Literal["a", "b"]
    part: Part


MORE = ASK | {"max_tokens": 100}


def answered_in_full(ask):
    """ask(seed), of the first seed with which the random weights end the answer."""
    for seed in range(20):
        try:
            return ask(seed)
        except openai.LengthFinishReasonError:
            continue
    raise AssertionError("no answer ends")


def test_parse_gives_a_pydantic_object(client):
    options = MORE | {"response_format": Thing}
    message = answered_in_full(lambda seed: client.chat.completions.parse(**options, seed=seed)).choices[0].message
    assert isinstance(message.parsed, Thing)
    assert Thing.model_validate_json(message.content) == message.parsed

    def streamed(seed):
        with client.chat.completions.stream(**options, seed=seed) as stream:
            return stream.get_final_completion()

    assert answered_in_full(streamed).choices[0].message == message


def test_an_answer_that_is_cut_off_is_an_error(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**MORE | {"max_tokens": 4}, response_format=Thing)


def test_json_object(client):
    options = MORE | {"max_tokens": 400, "n": 4, "response_format": {"type": "json_object"}}
    answer = client.chat.completions.create(**options)
    whole = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    for choice in whole:
        assert isinstance(json.loads(choice.message.content), dict)
    assert all(choice.message.content.startswith("{") for choice in answer.choices)


def test_vllms_form(client):
    def text(**format):
        return client.completions.create(**TEXT, extra_body={"structured_outputs": format}).choices[0].text

    assert text(regex="yes") == "yes"
    assert text(grammar='root ::= "no"') == "no"
    assert text(json={"const": 5}) == "5"
    stream = client.chat.completions.create(**ASK, stream=True, extra_body={"structured_outputs": {"regex": "ye+s"}})
    assert text_of(stream).startswith("ye")


def test_a_schema_that_is_not_supported_is_a_bad_request(client):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"dependentRequired": {}}}}
    with pytest.raises(openai.BadRequestError, match="dependentRequired") as raised:
        client.chat.completions.create(**ASK, response_format=schema)
    assert raised.value.param == "response_format"
