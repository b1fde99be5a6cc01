#!/usr/bin/env python3
"""Two replicas of a model behind Ray Serve. Questions about the same text go to the replica that has it in its cache.

    pip install headrace "ray[serve]"
    python examples/ray_serve.py --model SmolLM2-135M-Instruct.Q4_1.gguf
"""

import argparse
import asyncio

from ray import serve

from headrace import SamplingParams
from headrace.ray import language_model, stream

TEXTS = [
    "The sky is blue because air scatters short waves of light more than long ones. " * 4,
    "Bread rises because yeast turns sugar into carbon dioxide, which the dough holds. " * 4,
]
QUESTIONS = ["Why is that?", "Since when is it known?", "Who found it?"]


async def ask(handle, prompt, max_tokens):
    text, num_cached = "", 0
    async for output in stream(handle, prompt, SamplingParams(max_tokens=max_tokens)):
        text += output.text
        num_cached = max(num_cached, output.num_cached_tokens)
    return text, num_cached


async def run(handle, max_tokens):
    for question in QUESTIONS:
        answers = await asyncio.gather(*(ask(handle, f"{text}\n\n{question}\n", max_tokens) for text in TEXTS))
        for text, (answer, num_cached) in zip(TEXTS, answers, strict=True):
            print(f"{text[:20]}... {question} ({num_cached} tokens of the prompt were in the cache)\n  {answer!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file, at the same place on each node")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1, help="of a replica")
    args = parser.parse_args()
    application = language_model(args.model, num_replicas=args.replicas, llm_options={"num_threads": args.threads})
    serve.start(proxy_location="Disabled")  # nothing asks over HTTP
    handle = serve.run(application)
    asyncio.run(run(handle, args.max_tokens))
    serve.shutdown()


if __name__ == "__main__":
    main()
