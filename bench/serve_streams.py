#!/usr/bin/env python3
"""What thousands of open streams cost `headrace serve`, and what overload does to the streams that it accepts.

    python bench/serve_streams.py --program build/cpu-only/cli/headrace --model FILE --out RESULT.json

streams: OPEN streams are open, of which RUNNING get a token in each step, and the others wait for their turn. CPU
and memory of the server are those of --seconds in that state. overload: first 64 requests are always open, which gives
the rate that the server can answer with 32 sequences at once; then requests come at 0.8 and at 10 times this rate, and
those above 64 are refused with 429. The model should be small, so that the server's share shows. The client,
`headrace bench serve`, runs beside the server on the same machine.
"""

import argparse
import json
import subprocess
import sys
import time

from serving_process import ServingProcess, cpu_shares, meta, write


def client(args, server, *options):
    command = [args.program, "bench", "serve", "--url", server.url, "--model", "model", "--vocab", "200"]
    return [*command, "--ignore-eos", "--format", "json", *map(str, options)]


def measure_streams(args):
    options = ["--streams", args.running, "--max-requests", args.open, "--max-connections", args.open + 16]
    pages = args.running * -(-(args.answer_tokens + 32) // 16)
    with ServingProcess(args.program, args.model, *map(str, [*options, "--pages", pages, "--threads", 1])) as server:
        idle = server.sample()
        load = ["--requests", args.open, "--concurrency", args.open, "--prompt-tokens", 8]
        load += ["--answer-tokens", args.answer_tokens]
        started = subprocess.Popen(client(args, server, *load), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 120
            while (state := server.get("/v1/engine")["stats"])["running"] + state["waiting"] < args.open:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{state['running'] + state['waiting']} streams are open")
                time.sleep(0.2)
            before = state["generated_tokens"]
            first = server.sample()
            time.sleep(args.seconds)
            last = server.sample()
            state = server.get("/v1/engine")
        finally:
            started.kill()
            started.wait()
    seconds = last["time"] - first["time"]
    rate = (state["stats"]["generated_tokens"] - before) / seconds
    return {
        "open": args.open,
        "running": args.running,
        "seconds": round(seconds, 1),
        "tokens_per_s": round(rate),
        "tokens_per_s_of_a_stream": round(rate / args.running, 1),
        "cpu_cores": cpu_shares(first, last),
        "rss_mib_idle": idle["rss_mib"],
        "rss_mib": last["rss_mib"],
        "heap_kib_per_open_stream": round((last["heap_mib"] - idle["heap_mib"]) * 1024 / args.open, 1),
        "threads": last["threads"],
        "last_minute_ms": state["last_minute_ms"],
    }


def run_load(args, server, num_requests, *options):
    load = ["--requests", num_requests, *options, "--prompt-tokens", 16, "--answer-tokens", 64]
    done = subprocess.run(client(args, server, *load), capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    [row] = report["rows"]
    failures = {failure["failure"]: failure["count"] for failure in report.get("failures", [])}
    latencies = {one["latency"]: one for one in report["latencies"]}
    names = ("ms_median", "ms_p99", "ms_max")
    return row, failures, {name: [latencies[name][column] for column in names] for name in ("TTFT", "ITL")}


def measure_overload(args):
    options = ["--streams", 32, "--max-requests", 64, "--pages", 32 * 8, "--threads", 1]
    with ServingProcess(args.program, args.overload_model or args.model, *map(str, options)) as server:
        run_load(args, server, 64)  # warm
        rows = []

        def add(load, rate, num_requests, *options):
            row, failures, latencies = run_load(args, server, num_requests, *options)
            rows.append(
                {
                    "load": load,
                    "requests_per_s": round(rate or row["requests_per_s"], 1),
                    "complete": row["complete"],
                    "failures": failures,
                    "answer_tokens_per_s": round(row["answer_tokens_per_s"]),
                    "ms_median_p99_max": latencies,
                }
            )
            return row["requests_per_s"]

        # As many requests as are accepted, always: the batch is full, and none is refused.
        capacity = add(1, None, 256, "--concurrency", 64)
        for times in (0.8, 10):
            rate = capacity * times
            add(times, rate, max(64, int(rate * args.seconds)), "--rate", f"{rate:.1f}")
    return {"capacity_requests_per_s": round(capacity, 1), "streams": 32, "max_requests": 64, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="headrace")
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--overload-model", help="another one for the overload, whose steps take some milliseconds")
    parser.add_argument("--open", type=int, default=5000, help="streams [5000]")
    parser.add_argument("--running", type=int, default=1000, help="of them, that get tokens [1000]")
    parser.add_argument("--answer-tokens", type=int, default=1000, help="of a stream [1000]")
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement [20]")
    parser.add_argument("--out", help="JSON file")
    args = parser.parse_args()
    head = meta("serve_streams", ["bench/serve_streams.py", *sys.argv[1:]], args.program)
    write(args.out, {"meta": head, "streams": measure_streams(args), "overload": measure_overload(args)})


if __name__ == "__main__":
    main()
