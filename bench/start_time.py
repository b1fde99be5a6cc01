#!/usr/bin/env python3
"""How long does a start take?

    python bench/start_time.py --program headrace --model FILE --device cuda --out RESULT.json

Seconds from starting `headrace generate` to the first byte of its answer, and from starting `headrace serve` to the
first answer of /health. The first start may read the file from a disk; the others find it in the page cache.
"""

import argparse
import datetime
import json
import pathlib
import platform
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request


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


def ready(program, model, device, timeout):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "serve", "-m", model, "--device", device, "--port", str(port), "-c", "4096"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and time.perf_counter() - begin < timeout:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                    seconds = time.perf_counter() - begin
                    process.terminate()
                    return seconds
            except OSError:
                time.sleep(0.005)
        process.kill()
    sys.exit(f"{' '.join(command)}: not ready after {timeout} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="headrace")
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=120, help="seconds, of a server [120]")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    first_byte(args.program, args.model, args.device)
    seconds = {"first_token": [], "server_ready": []}
    for _ in range(args.rounds):
        seconds["first_token"].append(first_byte(args.program, args.model, args.device))
        seconds["server_ready"].append(ready(args.program, args.model, args.device, args.timeout))
    match = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text())
    version = subprocess.run([args.program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    result = {
        "meta": {
            "benchmark": "start_time",
            "command": "python bench/start_time.py " + " ".join(sys.argv[1:]),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "device": args.device, "machine": match[1] if match else platform.machine(), "version": version,
            "model_bytes": pathlib.Path(args.model).stat().st_size,
        },
        "seconds": seconds, "median": {name: statistics.median(values) for name, values in seconds.items()},
    }  # fmt: skip
    for name, values in seconds.items():
        print(f"{name}: {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})")
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
