#!/usr/bin/env python3
"""Each header of src/ and include/ compiles on its own.

Left out: -inl.h, vec_*.h and target_*.h, which belong inside the file of one instruction set and nowhere else.
"""

import concurrent.futures
import fnmatch
import os
import shutil
import subprocess

import checklib

LEFT_OUT = ["*-inl.h", "vec_*.h", "target_*.h"]
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-"]
compiler = os.environ.get("CXX", "g++")


def compile_header(root, path):
    # Twice, so that a missing #pragma once shows; by its path, so that no other folder's header of the name is taken.
    unit = f'#include "{root / path}"\n' * 2
    command = [compiler, "-I", str(root / "include"), "-I", str(root / "src"), *FLAGS]
    done = subprocess.run(command, input=unit, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
    return f"{path}: does not compile on its own: {errors[0]}"


def check(root):
    if not shutil.which(compiler):
        return [f"no compiler '{compiler}': set CXX or pass --cxx"]
    headers = [
        path
        for path in checklib.tracked_files(root)
        if path.parts[0] in {"src", "include"}
        and path.suffix in {".h", ".hpp"}
        and not any(fnmatch.fnmatch(path.name, pattern) for pattern in LEFT_OUT)
    ]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda path: compile_header(root, path), headers))
    return [finding for finding in found if finding]


def add_arguments(parser):
    parser.add_argument("--cxx", default=compiler, help="the C++ compiler, g++ unless CXX names another")


def configure(args):
    global compiler
    compiler = args.cxx


CASES = [
    ("stands alone", {"src/core/a.h": "#pragma once\n#include <string>\nstd::string f();\n"}, None),
    ("misses an include", {"src/a/b.h": "#pragma once\nstd::string f();\n"}, "src/a/b.h: does not compile"),
    ("no guard", {"include/headrace/a.hpp": "struct A {};\n"}, "include/headrace/a.hpp: does not compile"),
    ("path from src/", {"src/a/b.h": "#pragma once\n", "src/a/c.h": '#include "a/b.h"\n'}, None),
    ("left out", {"src/a/b-inl.h": "?\n", "src/a/vec_avx2.h": "?\n", "src/a/target_end.h": "?\n"}, None),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES, add_arguments, configure)
