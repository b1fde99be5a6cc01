"""The openai package as a client of headrace serve. The weights are random: texts are compared with each other."""

import asyncio
import json
import time

import openai
import pytest
from conftest import client_of

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
TEXT = {"model": "tiny", "prompt": "ab", "max_tokens": 8}
EXACT = {"temperature": 0, "extra_body": {"ignore_eos": True}}
# What is 0.1 s for the engine and an hour for one of these requests.
LONG = {"model": "tiny", "prompt": ["ab"] * 128, "n": 128, "max_tokens": 100, "extra_body": {"ignore_eos": True}}


def chat(client, **options):
    return client.chat.completions.create(**ASK | options)


def complete(client, **options):
    return client.completions.create(**TEXT | options)


def text_of(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def becomes(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def engine(server):
    return json.loads(server.ask("GET", "/v1/engine")[2])


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "headrace"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat(client):
    answer = chat(client, **EXACT)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    same = chat(client, **EXACT, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}])
    assert same.choices[0].message.content == choice.message.content
    turns = [{"role": role, "content": role} for role in ["developer", "user", "assistant", "user"]]
    assert chat(client, messages=turns, max_tokens=None, max_completion_tokens=3).usage.completion_tokens <= 3


def test_a_stream_of_a_chat_is_the_answer(client):
    whole = chat(client, **EXACT)
    chunks = list(chat(client, **EXACT, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage and chunks[-1].choices == []
    assert chunks[-2].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    with client.chat.completions.stream(**ASK, extra_body={"structured_outputs": {"regex": "yes|no"}}) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        assert "".join(deltas) == stream.get_final_completion().choices[0].message.content in ["yes", "no"]


def test_completions(client):
    whole = complete(client, **EXACT)
    tokens = client.post("/../tokenize", body={"prompt": "ab"}, cast_to=dict)["tokens"]
    for prompt in [tokens, ["ab"], [tokens]]:
        assert complete(client, prompt=prompt, **EXACT).choices[0].text == whole.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in complete(client, **EXACT, stream=True)) == whole.choices[0].text
    assert complete(client, max_tokens=None, **EXACT).usage.completion_tokens == 16
    many = complete(client, prompt=["ab", "c"], n=2, seed=1)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    for i, prompt in enumerate(["ab", "c"]):
        assert many.choices[2 * i + 1].text == complete(client, prompt=prompt, seed=2).choices[0].text


def test_async_requests_run_together(server):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            whole = await client.chat.completions.create(**ASK, **EXACT)

            async def streamed():
                stream = await client.chat.completions.create(**ASK, **EXACT, stream=True)
                return text_of([chunk async for chunk in stream])

            return whole.choices[0].message.content, await asyncio.gather(*[streamed() for _ in range(50)])

    whole, streams = asyncio.run(run())
    assert set(streams) == {whole}


def test_echo_begins_with_the_prompt(client):
    plain = complete(client, **EXACT).choices[0].text
    tokens = client.post("/../tokenize", body={"prompt": "ab"}, cast_to=dict)["tokens"]
    for prompt in ["ab", tokens]:
        assert complete(client, prompt=prompt, echo=True, **EXACT).choices[0].text == "ab" + plain
    chunks = complete(client, echo=True, stream=True, **EXACT)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "ab" + plain
    with pytest.raises(openai.BadRequestError):
        complete(client, echo=True, logprobs=1)


def test_token_ids_are_those_of_prompt_and_answer(client):
    ids = {"extra_body": {"return_token_ids": True, "ignore_eos": True}, "temperature": 0}
    tokens = client.post("/../tokenize", body={"prompt": "ab"}, cast_to=dict)["tokens"]
    choice = complete(client, **ids).choices[0]
    assert choice.prompt_token_ids == tokens and len(choice.token_ids) == 8
    streamed = list(complete(client, stream=True, **ids))
    assert streamed[0].choices[0].prompt_token_ids == tokens
    assert sum((chunk.choices[0].token_ids for chunk in streamed), []) == choice.token_ids
    # The answer goes on after the tokens of its prompt.
    chat_answer = chat(client, **ids)
    again = complete(client, prompt=chat_answer.prompt_token_ids, **ids)
    assert again.choices[0].token_ids == chat_answer.choices[0].token_ids
    first = next(iter(chat(client, stream=True, **ids)))
    assert first.prompt_token_ids == chat_answer.prompt_token_ids


def test_usage_counts_cached_tokens(start, long_model):
    with start(model=long_model) as server:
        ask = {"prompt": "ab" * 400, "max_tokens": 1}
        usages = [client_of(server).completions.create(**TEXT | ask).usage for _ in range(2)]
    first, second = [usage.prompt_tokens_details.cached_tokens for usage in usages]
    assert first == 0 and 0 < second < usages[1].prompt_tokens


def test_a_seed_gives_the_same_answer_again(client):
    texts = [chat(client, seed=seed).choices[0].message.content for seed in [1, 1, 2, -1, -1]]
    assert texts[0] == texts[1] != texts[2] and texts[3] == texts[4]
    samples = [choice.message.content for choice in chat(client, seed=1, n=3).choices]
    assert samples[0] == texts[0] and samples[1] == texts[2]
    assert len({chat(client, max_tokens=20).choices[0].message.content for _ in range(3)}) > 1


def test_n_answers_are_streamed_by_their_index(client):
    whole = [choice.message.content for choice in chat(client, n=3, seed=5).choices]
    chunks = list(chat(client, n=3, seed=5, stream=True))
    for i, text in enumerate(whole):
        mine = [chunk for chunk in chunks if chunk.choices[0].index == i]
        assert text_of(mine) == text
        assert mine[0].choices[0].delta.role == "assistant" and mine[-1].choices[0].finish_reason


def test_stop_strings_end_the_answer(client):
    whole = chat(client, **EXACT).choices[0].message.content
    stop = [letter for letter in whole if letter.isascii()][2]
    for value in [stop, [stop, "never there"]]:
        choice = chat(client, stop=value, **EXACT).choices[0]
        assert choice.message.content == whole.split(stop)[0] and choice.finish_reason == "stop"
    assert text_of(chat(client, stop=stop, stream=True, **EXACT)) == whole.split(stop)[0]


def test_logprobs_of_a_chat(client):
    answer = chat(client, logprobs=True, top_logprobs=3, **EXACT).choices[0]
    tokens = answer.logprobs.content
    assert len(tokens) == 8
    assert b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace") == answer.message.content
    for token in tokens:  # greedy
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs) <= 0
    chunks = list(chat(client, logprobs=True, top_logprobs=3, stream=True, **EXACT))
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert streamed == tokens
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(client).choices[0].logprobs is None


def test_logprobs_of_a_completion(client):
    logprobs = complete(client, logprobs=2, **EXACT).choices[0].logprobs
    assert [len(values) for values in [logprobs.tokens, logprobs.token_logprobs, logprobs.text_offset]] == [8, 8, 8]
    assert logprobs.text_offset[0] == 0 and logprobs.text_offset == sorted(logprobs.text_offset)
    for logprob, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
        assert logprob == max(top.values())


def test_sampling_options_change_the_answer(client):
    greedy = chat(client, **EXACT).choices[0].message.content
    only = {"temperature": 2, "seed": 3}
    for options in [{"top_p": 1e-6}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1}}]:
        assert greedy.startswith(chat(client, **only, **options).choices[0].message.content)
    token = client.post("/../tokenize", body={"prompt": "x"}, cast_to=dict)["tokens"][0]
    assert chat(client, logit_bias={str(token): 100}, **EXACT).choices[0].message.content == "x" * 8
    for options in [{"presence_penalty": 2}, {"frequency_penalty": 2}]:
        assert chat(client, logit_bias={str(token): 20}, **EXACT, **options).choices[0].message.content
    repeated = chat(client, max_tokens=40, **EXACT | {"extra_body": {"ignore_eos": True, "repetition_penalty": 1000}})
    assert repeated.choices[0].message.content != chat(client, max_tokens=40, **EXACT).choices[0].message.content


# ---- errors ----

@pytest.mark.parametrize("options, error", [
    ({"temperature": -1}, openai.BadRequestError),
    ({"messages": []}, openai.BadRequestError),
    ({"messages": [{"role": "user", "content": "a" * 5000}]}, openai.BadRequestError),
    ({"model": "other"}, openai.NotFoundError),
    ({"extra_headers": {"Origin": "http://x.test"}}, openai.PermissionDeniedError),
])
def test_errors_have_their_classes(client, options, error):
    with pytest.raises(error) as raised:
        chat(client, **options)
    assert raised.value.body["message"] and raised.value.body["type"] == "invalid_request_error"
    with pytest.raises(error):  # before the head of the stream
        chat(client, stream=True, **options)


def test_an_error_names_the_field(client):
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, top_p=2)
    assert raised.value.param == "top_p" and raised.value.code == "invalid_value"
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, messages=[{"role": "user", "content": "a" * 5000}])
    assert raised.value.code == "context_length_exceeded"


def test_a_key_is_asked_for(start):
    with start("--api-key", "secret") as server:
        with pytest.raises(openai.AuthenticationError):
            chat(client_of(server))
        assert chat(client_of(server).with_options(api_key="secret")).choices


def test_a_full_queue_is_a_rate_limit_that_a_retry_survives(start):
    with start("--max-requests", "128", "--streams", "1") as server:
        client = client_of(server)
        stream = client.completions.create(**LONG, stream=True)
        with pytest.raises(openai.RateLimitError) as raised:
            chat(client)
        assert raised.value.response.headers["retry-after"] == "1"
        stream.close()
        assert chat(client.with_options(max_retries=5)).choices


def test_a_server_that_ends_is_an_internal_error(start):
    with start("--streams", "1") as server:
        client = client_of(server)
        stream = iter(client.completions.create(**LONG, stream=True))
        next(stream)
        server.process.terminate()
        # The connection that is open is drained; new ones are refused.
        with pytest.raises(openai.APIConnectionError):
            for _ in range(1000):
                chat(client_of(server))
                time.sleep(0.01)


def test_a_server_that_dies_raises_in_the_stream(start):
    with start("--streams", "1") as server:
        stream = iter(client_of(server).completions.create(**LONG, stream=True))
        next(stream)
        server.process.kill()
        with pytest.raises(Exception, match="peer closed|incomplete|Connection"):
            list(stream)


def test_a_timeout_and_a_dropped_stream_abort_the_request(start):
    with start("--streams", "1") as server:
        client = client_of(server)
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).completions.create(**LONG)
        assert becomes(lambda: engine(server)["stats"]["requests"] == 0)
        for _ in range(3):
            stream = client.completions.create(**LONG, stream=True)
            next(iter(stream))
            assert engine(server)["stats"]["requests"] > 0
            stream.close()
            assert becomes(lambda: engine(server)["stats"]["requests"] == 0)
        assert engine(server)["pages"]["used"] == 0
