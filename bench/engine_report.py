"""What benchmarks of headrace.Engine have in common: their options, and the head of their results."""

import argparse
import datetime
import json
import pathlib
import sys

import headrace

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
from machine import cpu_name  # noqa: E402


def parser_of(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of a CPU; default: all")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    return parser


def meta(benchmark, args, llm):
    return {
        "benchmark": benchmark,
        "command": f"python bench/{benchmark}.py " + " ".join(sys.argv[1:]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": args.device,
        "machine": cpu_name(),
        "headrace": headrace.__version__,
        "model": llm.info.name,
    }


def write(path, result):
    if path:
        path.write_text(json.dumps(result, indent=2) + "\n")
