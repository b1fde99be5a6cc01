#!/usr/bin/env python3
"""documented_programs.py WORK PAGE...: builds and runs every C and C++ program of the pages.

A program is a fenced c or cpp block with a main(). It must compile without warnings, find Headrace through pkg-config
(PKG_CONFIG_PATH is set), exit with 0 and print something.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"^```(c|cpp)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMPILERS = {"c": "cc -std=c99", "cpp": "c++ -std=c++20"}


def pkg_config(*options):
    return shlex.split(subprocess.check_output(["pkg-config", *options, "headrace"], text=True))


def build_and_run(language, text, source):
    source.write_text(text, encoding="utf-8")
    program = source.with_suffix("")
    compiler = [*COMPILERS[language].split(), "-Wall", "-Wextra", "-Werror"]
    subprocess.check_call([*compiler, str(source), "-o", str(program), *pkg_config("--cflags", "--libs")])
    environment = {**os.environ, "LD_LIBRARY_PATH": pkg_config("--variable=libdir")[0]}
    said = subprocess.check_output([str(program)], env=environment, text=True)
    print(f"{source.name}: {said.strip()}")
    return said.strip() != ""


def main():
    work, pages = pathlib.Path(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]]
    work.mkdir(parents=True, exist_ok=True)
    for page in pages:
        programs = [block for block in BLOCK.findall(page.read_text(encoding="utf-8")) if "int main(" in block[1]]
        if not programs:
            sys.exit(f"{page} has no program")
        for number, (language, text) in enumerate(programs):
            suffix = ".c" if language == "c" else ".cc"
            if not build_and_run(language, text, work / f"{page.stem}_{number}{suffix}"):
                sys.exit(f"program {number} of {page} printed nothing")


if __name__ == "__main__":
    main()
