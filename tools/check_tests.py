#!/usr/bin/env python3
"""Each test file of C and C++ is in a CMakeLists.txt: one that no list names is never compiled, and never fails."""

import re

import checklib

TEST = re.compile(r"_test\.(?:cc|cu|c)$")
NAMED = re.compile(r"[\w/.${}-]+_test\.(?:cc|cu|c)\b")
# The variables that lists begin with, and the folder of each: of the list itself, or the root.
OF_LIST, OF_ROOT = "${CMAKE_CURRENT_SOURCE_DIR}/", "${PROJECT_SOURCE_DIR}/"


def named_in(path, text):
    """The test files that a list names, relative to the root."""
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    for name in NAMED.findall(code):
        yield name.removeprefix(OF_ROOT) if name.startswith(OF_ROOT) else (
            (path.parent / name.removeprefix(OF_LIST)).as_posix()
        )


def check(root):
    files = checklib.tracked_files(root)
    named = set()
    for path in files:
        if path.name == "CMakeLists.txt":
            named.update(named_in(path, checklib.read_text(root / path) or ""))
    return [
        f"{path}: in no CMakeLists.txt, so it never runs; add it to a program of tests/CMakeLists.txt"
        for path in files
        if TEST.search(path.name) and path.as_posix() not in named
    ]


LIST = "add_executable(a\n  x_test.cc y/z_test.cc\n  ${PROJECT_SOURCE_DIR}/src/b_test.cc)\n"
CASES = [
    ("all are listed", {"t/CMakeLists.txt": LIST, "t/x_test.cc": "", "t/y/z_test.cc": "", "src/b_test.cc": ""}, None),
    ("one is not", {"t/CMakeLists.txt": LIST, "src/c_test.cc": ""}, "src/c_test.cc: in no CMakeLists.txt"),
    ("the end of a name", {"t/CMakeLists.txt": LIST, "t/ax_test.cc": ""}, "t/ax_test.cc: in no"),
    ("a longer name", {"t/CMakeLists.txt": LIST, "src/test.cc": "", "src/ab_test.cc": ""}, "src/ab_test.cc: in no"),
    ("another folder", {"t/CMakeLists.txt": LIST, "u/x_test.cc": ""}, "u/x_test.cc: in no"),
    ("a comment", {"t/CMakeLists.txt": "# c_test.cc\n", "t/c_test.cc": ""}, "t/c_test.cc: in no"),
    ("C", {"t/CMakeLists.txt": "add_executable(a a_test.c)\n", "t/a_test.c": ""}, None),
    ("CUDA", {"t/CMakeLists.txt": LIST, "t/a_test.cu": ""}, "t/a_test.cu: in no"),
    ("the list's folder", {"t/CMakeLists.txt": f"add_executable(a {OF_LIST}a_test.cc)\n", "t/a_test.cc": ""}, None),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
