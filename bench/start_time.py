#!/usr/bin/env python3
"""How long does a start take?

    python bench/start_time.py --program headrace --model FILE --device cuda --out RESULT.json

Seconds from starting `headrace generate` to the first byte of its answer, and from starting `headrace serve` to the
first answer of /health. The first start may read the file from a disk; the others find it in the page cache.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

from serving_process import ServingProcess, meta, write


def first_byte(program, model, device):
    command = [program, "generate", "--raw", "-m", model, "--device", device, "-p", "Hello", "-n", "32", "-c", "512"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        has_byte = len(process.stdout.read(1)) == 1
        seconds = time.perf_counter() - begin
        process.stdout.read()
    if not has_byte or process.returncode != 0:
        sys.exit(f"{' '.join(command)}: ended with {process.returncode}")
    return seconds


def ready(program, model, device):
    begin = time.perf_counter()
    with ServingProcess(program, model, "--device", device, "-c", "4096") as server:
        server.get("/health")
        return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="headrace")
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    first_byte(args.program, args.model, args.device)
    seconds = {"first_token": [], "server_ready": []}
    for _ in range(args.rounds):
        seconds["first_token"].append(first_byte(args.program, args.model, args.device))
        seconds["server_ready"].append(ready(args.program, args.model, args.device))
    command = ["python", "bench/start_time.py", *sys.argv[1:]]
    size = {"device": args.device, "model_bytes": pathlib.Path(args.model).stat().st_size}
    result = {
        "meta": meta("start_time", command, args.program) | size,
        "seconds": seconds, "median": {name: statistics.median(values) for name, values in seconds.items()},
    }  # fmt: skip
    write(args.out, result)


if __name__ == "__main__":
    main()
