#!/usr/bin/env python3
"""Whatever a program can name in the public headers has a comment that doxygen understands.

--html FOLDER keeps the pages (./dev docs). The rules are in docs/Doxyfile.in.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile

import checklib

TREE = pathlib.Path(__file__).resolve().parent.parent
html = None


def version_of(root):
    header = root / "include/headrace/headrace.h"
    numbers = re.findall(r"#define HEADRACE_VERSION_\w+ (\d+)", header.read_text() if header.is_file() else "")
    return ".".join(numbers)


def run_doxygen(root, folder):
    """The complaints. The pages are in the folder."""
    template = (TREE / "docs/Doxyfile.in").read_text(encoding="utf-8")
    values = {"VERSION": version_of(root), "OUTPUT": str(folder), "SOURCE": str(root), "TREE": str(TREE)}
    text = re.sub("@([A-Z]+)@", lambda name: values[name[1]], template)
    done = subprocess.run(["doxygen", "-"], input=text, capture_output=True, text=True)
    complaints = [line.replace(f"{root}/", "") for line in done.stderr.splitlines() if line.strip()]
    if done.returncode != 0 and not complaints:
        return [f"doxygen ended with status {done.returncode} and said nothing"]
    return complaints


def check(root):
    if not shutil.which("doxygen"):
        raise checklib.Skip("no doxygen on PATH: apt-get install doxygen")
    if html:
        pathlib.Path(html).mkdir(parents=True, exist_ok=True)
        return run_doxygen(root, pathlib.Path(html).resolve())
    with tempfile.TemporaryDirectory() as folder:
        return run_doxygen(root, folder)


def add_arguments(parser):
    parser.add_argument("--html", help="the folder that the pages go to; without it they are thrown away")


def configure(args):
    global html
    html = args.html


def header(text):
    return {"include/headrace/headrace.h": f"/** @file\n * A header. */\n{text}"}


CASES = [
    ("documented", header("/** Adds. */\nint headrace_add(int a, int b);\n"), None),
    ("a function without a comment", header("int headrace_add(int a, int b);\n"), "headrace_add(int a, int b)"),
    ("a field without a comment", header("/** S. */\ntypedef struct s {\n  int a;\n} s;\n"), "Member a (variable)"),
    ("a word that doxygen does not know", header("/** Adds @nonsense. */\nint headrace_add(int a);\n"), "nonsense"),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES, add_arguments, configure)
