"""headrace.ray: two replicas in a cluster of Ray on this machine, one of which is killed under load."""

import asyncio
import os
import pathlib

import pytest

import headrace
from headrace import LLM, SamplingParams

ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")
from ray import serve  # noqa: E402

from headrace.ray import PrefixIndex, language_model, stream  # noqa: E402

FILE = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "tiny" / "tiny_llama3_f16.gguf"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="the models are in the tree")


def test_an_index_finds_the_longest_prefix():
    index = PrefixIndex(capacity=4)
    index.add("a" * 128, "first")
    index.add("a" * 64 + "b" * 64, "second")  # its first block is the other's too
    assert index.find("a" * 128 + "c", ["first", "second"]) == "first"
    assert index.find("a" * 64 + "b" * 64, ["first", "second"]) == "second"
    assert index.find("a" * 64 + "c" * 64, ["first", "second"]) == "second", "the latest one"
    assert index.find("a" * 64 + "b" * 64, ["first"]) is None, "a replica that is gone"
    assert index.find("a" * 60, ["first", "second"]) is None
    assert index.find([1] * 64, ["first"]) is None
    index.add([1] * 64, "first")
    index.add("short", "first")
    assert (index.find([1] * 70, ["first"]), index.find("short", ["first"])) == ("first", "first")
    index.add("d" * 192, "second")  # the oldest blocks make room
    assert index.find("a" * 128, ["first", "second"]) is None


@pytest.fixture(scope="module")
def handle(tmp_path_factory):
    package = pathlib.Path(headrace.__file__).parents[1]
    environment = {"PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])}
    if "HEADRACE_LIBRARY" in os.environ:
        environment["HEADRACE_LIBRARY"] = os.environ["HEADRACE_LIBRARY"]
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environment})
    serve.start(proxy_location="Disabled")  # nothing asks over HTTP
    application = language_model(
        str(FILE), num_replicas=2, llm_options={"num_threads": 1}, ray_actor_options={"num_cpus": 0.1}
    )
    yield serve.run(application)
    serve.shutdown()
    ray.shutdown()


def params(i, max_tokens=40):
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=1, seed=i)


async def collect(handle, prompt, one):
    tokens, text, finish = [], "", None
    async for output in stream(handle, prompt, one):
        assert finish is None and output.error == ""
        tokens, text, finish = tokens + output.tokens, text + output.text, output.finish_reason
    return tokens, text, finish


def replicas():
    """The names of the replicas' actors."""
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return sorted(name for name in names if name.startswith("SERVE_REPLICA") and "LanguageModel" in name)


def test_answers_are_those_of_the_model(handle):
    llm = LLM(FILE, num_threads=1)
    prompts = ["Hi", "Once upon a time", [1, 2, 3]]

    async def run():
        return await asyncio.gather(*(collect(handle, prompt, params(7)) for prompt in prompts))

    for prompt, (tokens, text, finish) in zip(prompts, asyncio.run(run()), strict=True):
        expected = llm.generate(prompt, params(7)).completions[0]
        assert (tokens, text, finish) == (expected.tokens, expected.text, "length")
    with pytest.raises(ValueError, match="n=2"):
        asyncio.run(collect(handle, "Hi", SamplingParams(n=2, temperature=1)))


def test_prompts_with_a_prefix_go_to_its_replica(handle):
    async def num_cached(prompt):
        return max([output.num_cached_tokens async for output in stream(handle, prompt, params(0, max_tokens=2))])

    async def run():
        return [[await num_cached(family * 100 + str(i)) for i in range(4)] for family in "xyz"]

    for first, *later in asyncio.run(run()):
        assert first == 0 and all(count >= 64 for count in later)


def test_a_replica_that_dies_costs_no_answer(handle):
    llm = LLM(FILE, num_threads=1)
    count = 24

    async def run():
        answers = [asyncio.ensure_future(collect(handle, f"prompt {i}", params(i, 60))) for i in range(count)]
        await asyncio.sleep(0.3)
        victim = replicas()[0]
        ray.kill(ray.get_actor(victim, namespace="serve"))
        return victim, await asyncio.gather(*answers)

    victim, answers = asyncio.run(run())
    for i, (tokens, text, _) in enumerate(answers):
        expected = llm.generate(f"prompt {i}", params(i, 60)).completions[0]
        assert (tokens, text) == (expected.tokens, expected.text)
    assert victim not in replicas()
