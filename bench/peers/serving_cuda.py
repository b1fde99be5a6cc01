#!/usr/bin/env python3
"""Continuous batching on a GPU beside vLLM, both without a server: the same requests, at the same times, to random
weights of one shape. Needs vLLM in this Python, and the program. vLLM keeps most of the GPU's memory, so the sides run
one after the other, vLLM first, and Headrace before it too with --rounds 2."""

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import platform
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

import report
from machine import progress, revision

# Llama 3.1 8B (its config.json without what neither side reads).
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 128000,
    "eos_token_id": 128001, "attention_bias": False, "mlp_bias": False,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip

COLUMNS = (
    ("case", "case", "{}"),
    ("peer_tokens", "vLLM's tokens a step", "{}"),
    ("headrace_tokens_per_s", "answer/s", "{:.0f}"),
    ("vllm_tokens_per_s", "vLLM", "{:.0f}"),
    ("ratio", "headrace/vLLM", "{:.2f}"),
    ("headrace_ttft_ms", "TTFT ms", "{:.0f}"),
    ("vllm_ttft_ms", "vLLM", "{:.0f}"),
    ("headrace_itl_ms", "ITL ms", "{:.1f}"),
    ("vllm_itl_ms", "vLLM", "{:.1f}"),
    ("headrace_itl_p99_ms", "p99", "{:.1f}"),
    ("vllm_itl_p99_ms", "vLLM", "{:.1f}"),
)
FORMATS = report.formats(COLUMNS, "headrace/vLLM")


def request(timestamp, prompt, answer):
    return {"timestamp": timestamp, "input_length": prompt, "output_length": answer}


def poisson(lengths, rate, seed=0):
    """Requests of these lengths at random times, `rate` a second."""
    draw, at, requests = random.Random(seed), 0.0, []
    for prompt, answer in lengths:
        at += draw.expovariate(rate)
        requests.append(request(round(at * 1e3, 3), prompt, answer))
    return requests


def cases_of(options):
    """Requests by case."""
    cases = {"512_of_1000+1000": [request(0, 1000, 1000)] * 512}
    for batch in (1, 8, 64, 256):
        cases[f"{batch}_of_1024+129"] = [request(0, 1024, 129)] * batch
        cases[f"{batch}_of_1024+1"] = [request(0, 1024, 1)] * batch
    for rate in options.rates:
        lengths = [(1000, 200)] * int(options.seconds * rate)
        cases[f"1000+200_at_{rate:g}_a_second"] = poisson(lengths, rate)
    if options.sharegpt:
        lines = map(json.loads, options.sharegpt.read_text().splitlines())
        lengths = [(line["input_length"], line["output_length"]) for line in lines]
        cases["sharegpt_at_once"] = [request(0, *pair) for pair in lengths]
        for rate in options.sharegpt_rates:
            some = lengths[: int(options.seconds * rate)]
            cases[f"sharegpt_at_{rate:g}_a_second"] = poisson(some, rate)
    return {name: case for name, case in cases.items() if re.search(options.filter, name)}


def percentile(values, percent):
    """Between the two closest ranks, as numpy.percentile."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def summarised(result, requests):
    milliseconds = lambda value: value and value * 1e3
    return {
        "seconds": result["seconds"],
        "tokens_per_s": sum(x["output_length"] for x in requests) / result["seconds"],
        "ttft_ms": milliseconds(percentile(result["first"], 50)),
        "itl_ms": milliseconds(percentile(result["between"], 50)),
        "itl_p99_ms": milliseconds(percentile(result["between"], 99)),
    }


def run_vllm(options, folder, traces, batch_tokens):
    """Seconds until its first answer, and results by case. They and what vLLM prints stay in files beside --out."""
    out = options.out.with_suffix(f".vllm-{batch_tokens}.jsonl")
    command = [sys.executable, str(pathlib.Path(__file__).with_name("vllm_side.py")), "--config", str(folder)]
    command += ["--batch-tokens", str(batch_tokens), "--rest", str(options.rest), "--out", str(out)]
    command += map(str, traces)
    log = options.out.with_suffix(f".vllm-{batch_tokens}.log")
    with log.open("w") as lines:
        if subprocess.run(command, stdout=lines, stderr=lines).returncode:
            raise SystemExit(f"vLLM failed; see {log}")
    results = [json.loads(line) for line in out.read_text().splitlines()]
    return results[0]["start_seconds"], {result["trace"]: result for result in results[1:]}


def run_headrace(options, config, traces):
    """Notes of the program, and results by case."""
    command = [options.program, "bench", "engine", "--random", str(config), "--device", "cuda", "--format", "json"]
    command += ["--streams", str(options.streams), "--rest", str(options.rest)]
    for trace in traces:
        command += ["--trace", str(trace)]
    command += shlex.split(options.headrace_options)
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result["meta"], {
        pathlib.Path(row["trace"]).stem: {
            "seconds": row["seconds"], "tokens_per_s": row["answer_tokens_per_s"], "ttft_ms": row["ttft_ms_median"],
            "itl_ms": row["itl_ms_median"], "itl_p99_ms": row["itl_ms_p99"],
        }
        for row in result["rows"]
    }  # fmt: skip


def row_of(case, batch_tokens, ours, theirs):
    row = {"case": case, "group": case.partition("_of_")[0], "peer_tokens": batch_tokens or "default"}
    for side, values in (("headrace", ours), ("vllm", theirs)):
        row.update({f"{side}_{key}": value for key, value in values.items()})
    return row | {"ratio": ours["tokens_per_s"] / theirs["tokens_per_s"]}


def numbers(kind):
    return lambda text: [kind(part) for part in text.split(",") if part]


def make_parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--program", default="build/release/cli/headrace")
    parser.add_argument("--config", type=pathlib.Path, help="config.json of another shape than Llama 3.1 8B")
    parser.add_argument("--filter", type=re.compile, default="", help="regex on case names")
    parser.add_argument("--rates", type=numbers(float), default=[6], help="requests a second, 1000+200 tokens")
    parser.add_argument("--sharegpt", type=pathlib.Path, help="trace that sharegpt_trace.py wrote")
    parser.add_argument("--sharegpt-rates", type=numbers(float), default=[20], help="requests a second")
    parser.add_argument("--seconds", type=float, default=30, help="during which requests come, if they do at a rate")
    parser.add_argument("--streams", type=int, default=256, help="sequences that Headrace computes at once")
    parser.add_argument("--vllm-tokens", type=numbers(int), default=[0], help="of a step; 0: vLLM's default")
    parser.add_argument("--headrace-options", default="", help="of bench engine: '-b 4096'")
    parser.add_argument("--rounds", type=int, default=1, help="of Headrace; the first runs before vLLM if 2")
    parser.add_argument("--rest", type=float, default=4, help="seconds before each case")
    parser.add_argument("--format", choices=sorted(FORMATS), default="text")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("serving_cuda.json"))
    parser.add_argument("--revision", help="revision of the program, outside a git checkout")
    return parser


def main():
    options = make_parser().parse_args()
    cases = cases_of(options)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = folder / "config.json"
        config.write_text(options.config.read_text() if options.config else json.dumps(CONFIG))
        traces = {case: folder / f"{case}.jsonl" for case in cases}
        for case, requests in cases.items():
            traces[case].write_text("".join(json.dumps(x) + "\n" for x in requests))

        ours = []  # notes and results of each round

        def run_rounds(number):
            for _ in range(number):
                progress("headrace")
                ours.append(run_headrace(options, config, traces.values()))

        run_rounds(options.rounds // 2)
        vllm = {}
        for tokens in options.vllm_tokens:
            progress(f"vLLM, {tokens or 'default'} tokens a step")
            vllm[tokens] = run_vllm(options, folder, traces.values(), tokens)
        run_rounds(options.rounds - options.rounds // 2)
        progress("")
    rows = []
    for tokens, (_, results) in vllm.items():
        for case, requests in cases.items():
            rounds = [result[case] for _, result in ours]
            by_speed = sorted(rounds, key=lambda result: result["tokens_per_s"])
            row = row_of(case, tokens, by_speed[(len(rounds) - 1) // 2], summarised(results[case], requests))
            rows.append(row | {"headrace_rounds": rounds})
    machine = ours[0][0]
    meta = {
        "benchmark": "peers/serving_cuda",
        "command": shlex.join(["bench/peers/serving_cuda.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine["machine"], "device": machine["device"], "build": machine["build"],
        "revision": options.revision or revision() or "unknown", "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("vllm", "torch", "triton")},
        "vllm_start_seconds": {str(tokens or "default"): seconds for tokens, (seconds, _) in vllm.items()},
    }  # fmt: skip
    result = {"meta": meta, "rows": rows, "summary": report.summary_of(rows)}
    sys.stdout.write(FORMATS[options.format](result))
    options.out.write_text(report.as_json(result))


if __name__ == "__main__":
    main()
