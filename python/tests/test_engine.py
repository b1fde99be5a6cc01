"""headrace.Engine, AsyncEngine and the batches of LLM, on a tiny model with random weights."""

import asyncio
import dataclasses
import gc
import itertools
import pathlib
import subprocess
import sys
import threading
import weakref

import pytest

from headrace import LLM, AsyncEngine, BusyError, Engine, Output, SamplingParams, TokenLogprob
from headrace._outputs import merged

FILE = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "tiny" / "tiny_llama3_f16.gguf"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="the models are in the tree")
WARM = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.5, seed=3)
ENDLESS = SamplingParams(ignore_eos=True)
LONG = dataclasses.replace(WARM, max_tokens=None, n=200)  # with max_num_seqs=1 25000 steps
# Texts and tokens, short and long, one twice.
PROMPTS = ["Hi", "Once upon a time", [1, 2, 3], "Hi", "x" * 80, "The sky"]
PARAMS = {
    "greedy": SamplingParams(max_tokens=12, ignore_eos=True),
    "sampled": WARM,
    "several": dataclasses.replace(WARM, n=3, temperature=0.8),
    "stops": dataclasses.replace(WARM, max_tokens=40, stop=["e", "a"]),
    "ends": dataclasses.replace(WARM, ignore_eos=False, max_tokens=None),
}
BANNED = SamplingParams(max_tokens=3, logit_bias=dict.fromkeys(range(288), float("-inf")))


@pytest.fixture(scope="module")
def llm():
    return LLM(FILE, num_threads=2)


def run(function):
    return asyncio.run(asyncio.wait_for(function(), 60))


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_a_prompt_gives_the_same_alone_in_a_batch_and_async(llm, params):
    alone = [llm.generate(prompt, params) for prompt in PROMPTS]
    assert llm.generate(PROMPTS, params) == alone
    assert run(lambda: llm.generate_async(PROMPTS, params)) == alone
    assert run(lambda: llm.generate_async(PROMPTS[4], params)) == alone[4]


def test_an_engine_gives_what_the_model_generates(llm):
    engine = Engine(llm, max_num_seqs=2)
    ids = [engine.add(prompt, WARM) for prompt in PROMPTS]
    texts, tokens, reasons = ({id: empty for id in ids} for empty in ("", [], None))
    for output in engine.stream():
        assert (output.sample, output.stop_string, output.error) == (0, None, "")
        assert reasons[output.id] is None, "nothing comes after the end"
        texts[output.id] += output.text
        tokens[output.id] = tokens[output.id] + output.tokens
        reasons[output.id] = output.finish_reason
    expected = [llm.generate(prompt, WARM) for prompt in PROMPTS]
    assert list(texts.values()) == [one.text for one in expected]
    assert list(tokens.values()) == [one.completions[0].tokens for one in expected]
    assert set(reasons.values()) == {"length"}
    stats = engine.stats()
    assert (stats.num_requests, stats.num_finished, stats.num_running) == (0, len(PROMPTS), 0)
    assert stats.num_generated_tokens == 12 * len(PROMPTS) and stats.num_free_pages == stats.num_pages
    assert engine.poll() is None and not engine.step()


def test_outputs_that_wait_together_are_one_output():
    """Each field, of outputs with tokens and of a last one without: an aborted sample ends so."""

    def output(tokens, finish_reason=None, stop_string=None, error="", num_cached=0):
        pairs = [[TokenLogprob(token, -token / 2)] for token in tokens]
        logprobs = [-float(token) for token in tokens]
        text = "".join(map(chr, tokens))
        return Output(1, 2, text, tokens, logprobs, pairs, finish_reason, stop_string, error, num_cached)

    first = output([65, 66], num_cached=16)
    for tokens in ([], [67], [67, 68]):
        num_cached = 16 if tokens else 0  # as the engine has it
        for end in ((None,), ("stop", 0), ("stop", 3), ("length",), ("aborted",), ("error", None, "why")):
            then = output(tokens, *end, num_cached=num_cached)
            assert merged(first, then) == output([65, 66, *tokens], *end, num_cached=16)
            assert merged(output([]), then) == then


def test_outputs_report_logprobs_and_the_stop_string(llm):
    engine = Engine(llm)
    engine.add("Hi", SamplingParams(max_tokens=4, ignore_eos=True), num_logprobs=2)
    engine.run()
    output = engine.poll()
    assert len(output.tokens) == len(output.logprobs) == len(output.top_logprobs) == 4
    for token, logprob, top in zip(output.tokens, output.logprobs, output.top_logprobs, strict=True):
        assert top[0] == (token, logprob) and top[0].logprob > top[1].logprob
    text = llm.generate("Hi", WARM).text
    stop = next(char for char in text[1:] if char.isascii())
    engine.add("Hi", dataclasses.replace(WARM, stop=["never", stop]))
    engine.run()
    output = engine.poll()
    assert (output.finish_reason, output.stop_string) == ("stop", 1)
    assert output.text == text[: text.index(stop)]


def test_stop_tokens_end_a_sample(llm):
    engine = Engine(llm)
    tokens = llm.generate("Hi", WARM).completions[0].tokens
    last = tokens[3]
    engine.add("Hi", WARM, stop_tokens=[llm.info.vocab_size - 1, last])
    engine.run()
    output = engine.poll()
    assert (output.tokens, output.finish_reason) == (tokens[: tokens.index(last) + 1], "stop")
    for bad, error in ((llm.info.vocab_size, ValueError), (2**40, ValueError), ("a", TypeError)):
        with pytest.raises(error, match="stop_tokens"):
            engine.add("Hi", WARM, stop_tokens=[bad])


def test_a_beam_search_gives_its_completions_best_first(llm):
    engine = Engine(llm)
    engine.add("Hi", SamplingParams(max_tokens=6, ignore_eos=True), beam_width=3)
    engine.run()
    outputs = engine.poll_all()
    assert [output.sample for output in outputs] == [0, 1, 2]
    sums = [sum(output.logprobs) for output in outputs]
    assert sums == sorted(sums, reverse=True) and len({tuple(output.tokens) for output in outputs}) == 3
    assert all(len(output.tokens) == 6 and output.finish_reason == "length" for output in outputs)
    greedy = llm.generate("Hi", SamplingParams(max_tokens=6, ignore_eos=True)).completions[0]
    assert sums[0] >= greedy.logprob - 1e-6
    with pytest.raises(ValueError, match="beam_width=3 with n"):
        engine.add("Hi", dataclasses.replace(WARM, n=2), beam_width=3)


def test_requests_with_another_salt_share_no_cached_prompt(llm):
    engine = Engine(llm)
    hits = []
    for salt in (0, 1, 1):
        before = engine.stats().num_cached_tokens
        engine.add("x" * 90, WARM, cache_salt=salt)
        engine.run()
        hits.append(engine.stats().num_cached_tokens > before)
        assert engine.poll().num_cached_tokens == engine.stats().num_cached_tokens - before
    assert hits == [False, False, True]


def test_requests_run_by_priority_and_an_abort_ends_one(llm):
    engine = Engine(llm, max_num_seqs=1)
    first, second, third = (engine.add("Hi", WARM, priority=priority) for priority in (2, 1, 1))
    endless = engine.add("Hi", ENDLESS, priority=0)
    engine.step()
    engine.abort(endless)
    ended = [(o.id, o.finish_reason) for o in engine.stream() if o.finish_reason]
    assert ended == [(endless, "aborted"), (second, "length"), (third, "length"), (first, "length")]
    engine.abort(first)
    with pytest.raises(ValueError, match="id=9: must be 1 to 4"):
        engine.abort(9)


@pytest.mark.parametrize("host_pages", [0, 64])
def test_preemption_changes_no_token(llm, host_pages):
    pages = -(-llm.max_context // 4)  # of one sequence
    engine = Engine(llm, page_size=4, num_pages=pages, num_host_pages=host_pages, prefix_cache=False)
    params = dataclasses.replace(WARM, max_tokens=60)
    ids = [engine.add(prompt, params) for prompt in PROMPTS]
    tokens = {id: [] for id in ids}
    for output in engine.stream():
        tokens[output.id] += output.tokens
    assert engine.stats().num_preemptions > 0 and engine.stats().host_seconds > 0
    assert list(tokens.values()) == [one.completions[0].tokens for one in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda llm: Engine(llm, max_num_seqs=-1), ValueError, "max_num_seqs=-1"),
        (lambda llm: Engine(llm, num_pages="x"), TypeError, "num_pages"),
        (lambda llm: Engine(llm, num_pages=1), ValueError, "num_pages=1: must be at least"),
        (lambda llm: Engine(llm, max_context=129), ValueError, "max_context=129: must be 1 to 128"),
        (lambda llm: Engine(llm, max_context=0), ValueError, "max_context=0: must be 1 to 128"),
        (lambda llm: Engine(llm, max_context=9).add([1] * 10), ValueError, "max_tokens is 9"),
        (lambda llm: Engine(llm).add(""), ValueError, "prompt: has no tokens"),
        (lambda llm: Engine(llm).add("Hi", num_logprobs=-1), ValueError, "num_logprobs=-1: must not be negative"),
        (lambda llm: Engine(llm).add("Hi", num_logprobs=5000), ValueError, "num_logprobs=5000"),
        (lambda llm: llm.generate(["Hi", [10**6]]), ValueError, r"prompt\[0\]=1000000"),
        (lambda llm: llm.generate(["Hi", "x" * 1000]), ValueError, "max_tokens is 128"),
        (lambda llm: run(lambda: llm.generate_async(["Hi", [10**6]])), ValueError, r"prompt\[0\]=1000000"),
        (lambda llm: run(lambda: anext(llm.stream_async("Hi", PARAMS["several"]))), ValueError, "n=3"),
    ],
)
def test_errors_name_the_argument(llm, call, error, text):
    with pytest.raises(error, match=text):
        call(llm)


def test_a_full_engine_is_busy_until_it_is_polled(llm):
    engine = Engine(llm, max_requests=1)
    engine.add("Hi", WARM)
    engine.run()
    with pytest.raises(BusyError, match="max_requests=1"):
        engine.add("Hi", WARM)
    assert engine.poll().finish_reason == "length"
    engine.add("Hi", WARM)

    async def two_at_once():
        async with AsyncEngine(llm, max_requests=1) as engine:
            return await asyncio.gather(*(engine.generate("Hi", ENDLESS) for _ in range(2)), return_exceptions=True)

    first, second = run(two_at_once)
    assert first == llm.generate("Hi", ENDLESS) and isinstance(second, BusyError)


def test_a_request_that_fails_harms_no_other(llm):
    engine = Engine(llm)
    ids = [engine.add("Hi", params) for params in (WARM, BANNED, WARM)]
    reasons = {output.id: output.finish_reason for output in engine.stream()}
    assert [reasons[id] for id in ids] == ["length", "error", "length"]

    async def together():
        async with AsyncEngine(llm) as engine:
            jobs = (engine.generate("Hi", params) for params in (WARM, BANNED, WARM))
            return await asyncio.gather(*jobs, return_exceptions=True)

    good = llm.generate("Hi", WARM)
    first, failed, last = run(together)
    assert (first, last) == (good, good) and isinstance(failed, RuntimeError)
    assert "logit" in str(failed)
    for call in (lambda: llm.generate(["Hi", "Ho"], BANNED), lambda: run(lambda: llm.generate_async("Hi", BANNED))):
        with pytest.raises(RuntimeError, match="logit"):
            call()


def test_an_async_stream_gives_the_pieces_of_the_text(llm):
    async def pieces():
        return [text async for text in llm.stream_async("Hi", WARM)]

    got = run(pieces)
    assert "".join(got) == llm.generate("Hi", WARM).text and all(got)


@pytest.mark.parametrize("num_logprobs", [0, 2])
def test_a_slow_reader_gets_every_token_once(llm, num_logprobs):
    async def read():
        async with AsyncEngine(llm) as engine:
            outputs = []
            async for output in engine.stream("Hi", ENDLESS, num_logprobs=num_logprobs):
                outputs.append(output)
                if len(outputs) < 20:
                    await asyncio.sleep(0.02)
            return outputs

    engine = Engine(llm)
    engine.add("Hi", ENDLESS, num_logprobs=num_logprobs)
    engine.run()
    whole, outputs = engine.poll(), run(read)
    assert any(len(output.tokens) > 1 for output in outputs), "the reader is slow"
    for name in ("text", "tokens", "logprobs", "top_logprobs"):
        pieces = [getattr(output, name) for output in outputs]
        assert list(itertools.chain(*pieces)) == list(getattr(whole, name)), name
    last = outputs[-1]
    assert (last.finish_reason, last.stop_string, last.error) == (whole.finish_reason, whole.stop_string, whole.error)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("way", ["task", "stream", "dropped", "unused", "timeout"])
def test_a_cancelled_request_ends(llm, way):
    async def cancel():
        async with AsyncEngine(llm, max_num_seqs=1, max_requests=2) as engine:
            if way == "task":
                tasks = [asyncio.ensure_future(engine.generate("Hi", LONG)) for _ in range(2)]  # the second waits
                await until(lambda: engine.stats().num_generated_tokens)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() for task in tasks)
            elif way == "timeout":
                with pytest.raises((asyncio.TimeoutError, TimeoutError)):
                    await asyncio.wait_for(engine.generate("Hi", LONG), 0.01)
            else:
                stream = engine.stream("Hi", LONG)
                if way != "unused":
                    await anext(stream)
                if way == "stream":
                    await stream.aclose()
                del stream
            await until(lambda: engine.stats().num_requests == 0)
            return await engine.generate("Hi", WARM)

    assert run(cancel) == llm.generate("Hi", WARM)


def test_closing_ends_requests_and_the_thread(llm):
    before = threading.active_count()

    async def close():
        engine = AsyncEngine(llm, max_num_seqs=1)
        tasks = [asyncio.ensure_future(engine.generate("Hi", LONG)) for _ in range(3)]
        await until(lambda: engine.stats().num_generated_tokens)
        engine.close()
        engine.close()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(RuntimeError, match="the engine is closed; create another one"):
            await engine.generate("Hi", WARM)
        return ends

    for end in run(close):
        assert isinstance(end, RuntimeError) and "the engine is closed" in str(end)
    assert threading.active_count() == before


def test_an_engine_without_references_frees_its_thread_and_its_model():
    before = threading.active_count()
    llm = LLM(FILE, num_threads=2)
    run(lambda: llm.generate_async("Hi", WARM))
    engine = AsyncEngine(llm)
    dead = [weakref.ref(engine), weakref.ref(llm._handle)]
    assert threading.active_count() == before + 2
    del llm, engine
    gc.collect()
    deadline = threading.Event()
    for _ in range(1000):
        if threading.active_count() == before and not any(ref() for ref in dead):
            break
        gc.collect()
        deadline.wait(0.005)
    assert threading.active_count() == before
    assert [ref() for ref in dead] == [None, None]


def test_threads_and_event_loops_share_an_engine(llm):
    expected = [llm.generate(prompt, WARM) for prompt in PROMPTS]
    results = []

    def in_a_loop():
        results.append(run(lambda: llm.generate_async(PROMPTS, WARM)))

    def in_a_batch():
        results.append(llm.generate(PROMPTS, WARM))

    threads = [threading.Thread(target=target) for target in (in_a_loop, in_a_batch, in_a_loop, in_a_loop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4

    engine = Engine(llm, max_num_seqs=4)
    added, ended = [], []

    def add_and_step():
        for _ in range(10):
            added.append(engine.add("Hi", WARM))
            engine.step()
            ended.extend(output.id for output in engine.poll_all() if output.finish_reason)

    threads = [threading.Thread(target=add_and_step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended.extend(output.id for output in engine.stream() if output.finish_reason)
    assert sorted(ended) == sorted(added) == list(range(1, 41))


def test_a_closed_event_loop_leaves_its_requests_behind(llm):
    engine = AsyncEngine(llm, max_num_seqs=2, max_requests=2)
    loop = asyncio.new_event_loop()
    stream = engine.stream("Hi", LONG)
    loop.run_until_complete(anext(stream))
    loop.close()
    del stream

    async def again():
        await until(lambda: engine.stats().num_requests == 0)
        return await engine.generate("Hi", WARM)

    assert run(again) == llm.generate("Hi", WARM)
    engine.close()


def test_a_program_may_end_while_engines_compute():
    code = f"""
import asyncio, headrace
llm = headrace.LLM({str(FILE)!r}, num_threads=2)
async def main():
    await anext(llm.stream_async("Hi", headrace.SamplingParams(ignore_eos=True)))
engine = headrace.AsyncEngine(llm)
asyncio.run(main())
print("end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
