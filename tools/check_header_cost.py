#!/usr/bin/env python3
"""Including headrace.h or headrace.hpp costs a translation unit less than 0.3 s.

Seconds of the compiler's own time (user, without waiting for other programs), C++20 at -O0, of a unit that includes the
header and nothing else, less those of an empty one; the least of several runs.
"""

import os
import shutil
import subprocess
import tempfile

import checklib

HEADERS = ["headrace/headrace.h", "headrace/headrace.hpp"]
LIMIT_S = 0.3
RUNS = 5
compiler = os.environ.get("CXX", "g++")


def user_seconds(root, unit):
    """The least of several runs; None where the unit does not compile."""
    command = [compiler, "-std=c++20", "-O0", "-I", str(root / "include"), "-c", "-o", "unit.o", "-x", "c++", "unit.cc"]
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/unit.cc", "w", encoding="utf-8") as file:
            file.write(unit)
        times = []
        for _ in range(RUNS):
            before = os.times().children_user
            # A compiler behind ccache would copy an object instead of making one.
            environment = dict(os.environ, CCACHE_DISABLE="1")
            if subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode != 0:
                return None
            times.append(os.times().children_user - before)
        return min(times)


def check(root):
    if not shutil.which(compiler):
        return [f"no compiler '{compiler}': set CXX or pass --cxx"]
    empty = user_seconds(root, "")
    findings = []
    for header in HEADERS:
        if not (root / "include" / header).is_file():
            continue
        whole = user_seconds(root, f"#include <{header}>\n")
        if whole is None:
            findings.append(f"include/{header}: does not compile")
        elif whole - empty >= LIMIT_S:
            findings.append(
                f"include/{header}: costs {whole - empty:.2f} s of {compiler}, the limit is {LIMIT_S} s: include less"
            )
        else:
            print(f"include/{header}: {max(whole - empty, 0):.2f} s")
    return findings


def add_arguments(parser):
    parser.add_argument("--cxx", default=compiler, help="the C++ compiler, g++ unless CXX names another")


def configure(args):
    global compiler
    compiler = args.cxx


DEAR = ["filesystem", "future", "iostream", "random", "ranges", "regex", "thread"]
CASES = [
    ("cheap", {"include/headrace/headrace.h": "#include <stdint.h>\n"}, None),
    (
        "dear",
        # Several, since a fast machine takes 0.28 s for <regex>.
        {"include/headrace/headrace.hpp": "".join(f"#include <{name}>\n" for name in DEAR)},
        "include/headrace/headrace.hpp: costs",
    ),
    ("broken", {"include/headrace/headrace.hpp": "?\n"}, "include/headrace/headrace.hpp: does not compile"),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES, add_arguments, configure)
