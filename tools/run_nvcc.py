#!/usr/bin/env python3
"""Runs nvcc, says how long it took, and fails where ptxas reports that it had to give up a promise of the source.

usage: run_nvcc.py COMMAND...    or    run_nvcc.py --self-test

C7508: setmaxnreg is ignored. C7509 to C7519: wgmma instructions wait for each other. ptxas prints these as information,
so no warning flag turns them into errors. check_sass.py looks for what ptxas does not say.
"""

import pathlib
import re
import subprocess
import sys
import time

GIVEN_UP = re.compile(rb"\(C75(?:08|09|1[0-9])\)")


def run(command):
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.buffer.flush()
    source = next((pathlib.Path(word).name for word in reversed(command) if word.endswith(".cu")), command[0])
    print(f"{source}: {time.monotonic() - start:.1f} s", flush=True)
    if done.returncode == 0 and GIVEN_UP.search(done.stdout):
        print("run_nvcc.py: the message above is an error in this tree: the kernel would be slow", flush=True)
        return 1
    return done.returncode


def self_test():
    message = "ptxas info    : (C%d) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    cases = [("clean", "ptxas info : Used 168 registers", 0), ("C7507", message % 7507, 0)]
    cases += [(f"C{code}", message % code, 1) for code in (7508, 7510, 7519)]
    wrong = [name for name, text, status in cases if run(["echo", text]) != status]
    wrong += [] if run(["false"]) == 1 else ["the compiler's own failure"]
    print(f"run_nvcc.py: self-test, {len(cases) + 1} cases: {len(wrong)} wrong {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(self_test() if sys.argv[1:] == ["--self-test"] else run(sys.argv[1:]))
