#!/usr/bin/env python3
"""Mixed traffic against `headrace serve` for minutes or hours: nothing fails, and memory stays flat.

    python bench/soak.py --program build/cpu-only/cli/headrace --model FILE --minutes 10 --out RESULT.json

Clients, a thread each, send streams, whole answers, several samples, JSON Schemas, tools, and tokenize; they close
streams in the middle, read slowly, and send bodies that are refused. The KV cache has fewer pages than the clients
need, so sequences are preempted. Memory, files and threads of the server are sampled; twice a minute the clients pause,
and all pages must be free. Exit codes: 0 all is well, 1 an answer was unexpected, memory grew or the server ended.
"""

import argparse
import collections
import http.client
import json
import random
import socket
import sys
import threading
import time

from serving_process import ServingProcess, meta, write

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
BAD_BODIES = [b"{", b"[]", b'{"messages": 5}', b'{"messages": [], "n": -1}', b'{"prompt": "\xff"}', b""]


class Client(threading.Thread):
    """Sends requests until `stop` is set; pauses while `pause` is set, and then is_idle."""

    def __init__(self, server, seed, stop, pause):
        super().__init__(daemon=True)
        self.server, self.random, self.stop, self.pause = server, random.Random(seed), stop, pause
        self.counts = collections.Counter()
        self.failures = []
        self.is_idle = False
        kinds = {
            self.stream: 30, self.answer: 20, self.samples: 8, self.close_early: 15, self.read_slowly: 5,
            self.schema: 8, self.tools: 6, self.tokenize: 4, self.refused: 4,
        }  # fmt: skip
        self.kinds, self.weights = list(kinds), list(kinds.values())

    def run(self):
        while not self.stop.is_set():
            if self.pause.is_set():
                self.is_idle = True
                time.sleep(0.05)
                continue
            self.is_idle = False
            [kind] = self.random.choices(self.kinds, self.weights)
            try:
                kind()
                self.counts[kind.__name__] += 1
            except Exception as error:  # noqa: BLE001, every failure is reported
                self.failures.append(f"{kind.__name__}: {type(error).__name__}: {error}")
        self.is_idle = True

    def chat(self, **options):
        words = " ".join(self.random.choices(["sky", "blue", "why", "number", "tree"], k=self.random.randint(1, 60)))
        body = {"messages": [{"role": "user", "content": words}], "max_tokens": self.random.randint(1, 60)}
        return body | {"temperature": 1, "seed": self.random.randint(0, 99)} | options

    def post(self, path, body, status=200):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != status:
                raise AssertionError(f"status {answer.status}: {text[:200]!r}")
            return json.loads(text)
        finally:
            connection.close()

    def events(self, body, num_events=None, pause=0):
        """Reads the events of a stream, all or the first ones; then the connection is closed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body | {"stream": True}).encode())
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(f"status {answer.status}: {answer.read()[:200]!r}")
            last, count = "", 0
            while line := answer.readline().decode():
                if not line.startswith("data: "):
                    continue
                last, count = line.strip(), count + 1
                if '"error"' in last:
                    raise AssertionError(last)
                if count == num_events:
                    return
                time.sleep(pause)
            if last != "data: [DONE]":
                raise AssertionError(f"the stream ends with {last!r}")
        finally:
            connection.close()

    def stream(self):
        self.events(self.chat())

    def close_early(self):
        self.events(self.chat(max_tokens=200), num_events=self.random.randint(1, 8))

    def read_slowly(self):
        self.events(self.chat(max_tokens=20), pause=0.02)

    def answer(self):
        self.post("/v1/chat/completions", self.chat(logprobs=True, top_logprobs=3))

    def samples(self):
        self.post("/v1/completions", {"prompt": ["sky", "blue"], "n": 3, "max_tokens": 20, "temperature": 1})

    def schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        choice = self.post("/v1/chat/completions", self.chat(response_format=form, max_tokens=100))["choices"][0]
        if choice["finish_reason"] == "stop":
            json.loads(choice["message"]["content"])

    def tools(self):
        self.post("/v1/chat/completions", self.chat(tools=[TOOL], tool_choice="required", max_tokens=100))

    def tokenize(self):
        self.post("/tokenize", {"prompt": "why is the sky blue? " * self.random.randint(1, 500)})

    def refused(self):
        choice = self.random.randrange(3)
        if choice == 0:
            self.post("/v1/chat/completions", self.random.choice(BAD_BODIES), status=400)
        elif choice == 1:
            self.post("/v1/completions", {"prompt": "sky " * 50000}, status=400)
        else:  # a header that never ends
            with socket.create_connection(("127.0.0.1", self.server.port)) as half:
                half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")


def check_idle(server, clients, pause):
    """Pauses the clients. None, or what is not as it should be with no request under way."""
    pause.set()
    try:
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline:
            state = server.get("/v1/engine")
            if all(client.is_idle for client in clients) and state["stats"]["running"] + state["stats"]["waiting"] == 0:
                return None if state["pages"]["used"] == 0 else f"{state['pages']['used']} pages are in use"
            time.sleep(0.1)
        return f"requests do not end: {state['stats']}"
    finally:
        pause.clear()


def slope_mib_per_hour(samples):
    times = [sample["time"] / 3600 for sample in samples]
    sizes = [sample["heap_mib"] for sample in samples]
    mean_time, mean_size = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((one - mean_time) ** 2 for one in times)
    return sum((t - mean_time) * (s - mean_size) for t, s in zip(times, sizes, strict=True)) / spread


def soak(args, server):
    stop, pause = threading.Event(), threading.Event()
    clients = [Client(server, seed, stop, pause) for seed in range(args.clients)]
    for client in clients:
        client.start()
    samples, problems = [], []
    end = time.monotonic() + args.minutes * 60
    next_check = time.monotonic() + 30
    while time.monotonic() < end and server.process.poll() is None and not problems:
        time.sleep(2)
        samples.append(server.sample())
        problems += [failure for client in clients for failure in client.failures][:5]
        if time.monotonic() >= next_check:
            next_check = time.monotonic() + 30
            problems += filter(None, [check_idle(server, clients, pause)])
    if server.process.poll() is not None:
        problems.append(f"the server has ended with {server.process.returncode}")
    else:
        problems += filter(None, [check_idle(server, clients, pause)])
    stop.set()
    return samples, clients, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="headrace")
    parser.add_argument("--model", required=True, help="a GGUF file with a chat template")
    parser.add_argument("--template", default="qwen2.5", help="a chat template with tools [qwen2.5]")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--context", type=int, default=2048, help="tokens of prompt and answer [2048]")
    parser.add_argument("--pages", type=int, default=128, help="of the KV cache [128]")
    parser.add_argument("--max-growth-mib", type=float, default=2, help="from the second fifth to the last [2]")
    parser.add_argument("--out", help="JSON file")
    args = parser.parse_args()
    options = ["--template", args.template, "--context", args.context, "--pages", args.pages, "--threads", 1]
    with ServingProcess(args.program, args.model, *map(str, options)) as server:
        samples, clients, problems = soak(args, server)
        state = server.get("/v1/engine") if server.process.poll() is None else {"stats": {}}
    fifth = max(1, len(samples) // 5)
    means = [sum(s["heap_mib"] for s in part) / len(part) for part in (samples[fifth : 2 * fifth], samples[-fifth:])]
    if means[1] - means[0] > args.max_growth_mib:
        problems.append(f"memory grew from {means[0]:.1f} to {means[1]:.1f} MiB")
    every = max(1, len(samples) // 20)
    start = samples[0]["time"]
    write(
        args.out,
        {
            "meta": meta("soak", ["bench/soak.py", *sys.argv[1:]], args.program),
            "requests": dict(sum((client.counts for client in clients), collections.Counter())),
            "engine": state["stats"],
            "heap_mib_second_fifth": round(means[0], 2),
            "heap_mib_last_fifth": round(means[1], 2),
            "heap_mib_per_hour": round(slope_mib_per_hour(samples[len(samples) // 2 :]), 2),
            "most_files": max(sample["files"] for sample in samples),
            "threads": sorted({sample["threads"] for sample in samples}),
            "problems": problems,
            "rows": [
                {"seconds": round(s["time"] - start), **{name: s[name] for name in ("heap_mib", "rss_mib")}}
                for s in samples[::every]
            ],
        },
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
