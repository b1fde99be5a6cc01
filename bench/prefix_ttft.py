#!/usr/bin/env python3
"""What does the prefix cache take off the time to the first token?

    python bench/prefix_ttft.py --model FILE --device cuda --shared 2000 --own 100 --rate 16 --out RESULT.json

Requests arrive at a rate. Their prompts share a beginning, as chats with one system prompt do, and go on with tokens of
their own. An engine with a prefix cache and one without compute the same requests; rounds alternate.
"""

import random
import statistics
import sys
import time

import headrace
from engine_report import meta, parser_of, write


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]


def first_token_times(llm, prompts, answer, rate, streams, has_cache):
    """Seconds from each arrival to its first token, and the tokens of all answers."""
    engine = headrace.Engine(
        llm, prefix_cache=has_cache, max_num_seqs=streams, max_context=max(map(len, prompts)) + answer
    )
    params = headrace.SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
    engine.add(prompts[0], params)
    engine.run()  # the first prompt of a conversation has nothing to find
    engine.poll_all()
    arrivals, ids, times, tokens = [i / rate for i in range(len(prompts))], {}, {}, {}
    num_ended = 0
    begin = time.perf_counter()
    while num_ended < len(prompts):
        while len(ids) < len(prompts) and arrivals[len(ids)] <= time.perf_counter() - begin:
            i = len(ids)
            ids[engine.add(prompts[i], params)] = i
            tokens[i] = []
        if not engine.step() and len(ids) < len(prompts):
            time.sleep(max(0.0, arrivals[len(ids)] - (time.perf_counter() - begin)))
        for output in engine.poll_all():
            i = ids[output.id]
            if output.tokens and not tokens[i]:
                times[i] = time.perf_counter() - begin - arrivals[i]
            tokens[i] += output.tokens
            num_ended += output.finish_reason is not None
            if output.finish_reason == "error":
                sys.exit(f"request {i}: {output.error}")
    return [times[i] for i in range(len(prompts))], [tokens[i] for i in range(len(prompts))]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--shared", type=int, default=2000, help="tokens that all prompts begin with [2000]")
    parser.add_argument("--own", type=int, default=100, help="tokens behind them [100]")
    parser.add_argument("--answer", type=int, default=16, help="tokens of an answer [16]")
    parser.add_argument("--rate", type=float, default=16, help="requests per second [16]")
    parser.add_argument("--streams", type=int, help="computed at once; default: by the device")
    args = parser.parse_args()
    llm = headrace.LLM(args.model, device=args.device, num_threads=args.threads)
    rng, vocab = random.Random(1), llm.info.vocab_size
    shared = [rng.randrange(vocab) for _ in range(args.shared)]
    prompts = [shared + [rng.randrange(vocab) for _ in range(args.own)] for _ in range(args.requests)]
    times, answers = {True: [], False: []}, {True: [], False: []}
    for n in range(args.rounds):
        for has_cache in (True, False):
            print(f"round {n + 1}, {'with' if has_cache else 'without'} the cache", file=sys.stderr, flush=True)
            seconds, tokens = first_token_times(llm, prompts, args.answer, args.rate, args.streams, has_cache)
            times[has_cache] += seconds
            answers[has_cache].append(tokens)
    is_equal = all(tokens == answers[True][0] for side in answers.values() for tokens in side)
    ms = {
        name: {"p50": 1e3 * statistics.median(times[side]), "p99": 1e3 * percentile(times[side], 99)}
        for name, side in (("with", True), ("without", False))
    }
    result = {
        "meta": meta("prefix_ttft", args, llm),
        "ttft_ms": ms, "ratio_p50": ms["with"]["p50"] / ms["without"]["p50"], "equal_tokens": is_equal,
    }  # fmt: skip
    print(
        f"first token after {ms['with']['p50']:.1f} ms (p99 {ms['with']['p99']:.1f}) with the prefix cache, "
        f"{ms['without']['p50']:.1f} ({ms['without']['p99']:.1f}) without: {result['ratio_p50']:.3f}x; "
        f"answers are {'equal' if is_equal else 'DIFFERENT'}"
    )
    write(args.out, result)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
