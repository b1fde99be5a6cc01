#!/usr/bin/env python3
"""codespell finds no misspelled word in a tracked file. Debian 12's codespell 2.2.2 and 2.4.1 both say nothing here."""

import shutil
import subprocess

import checklib

# In lower case: names of the code, and parts of words that tests cut or write in bytes.
IGNORED = ["4rd", "caf", "dout", "kinf", "nd", "ontext"]
EXCLUDED = ("tests/golden/", "tests/fuzz/corpus/")


def check(root):
    if not shutil.which("codespell"):
        raise checklib.Skip("no codespell on PATH: apt-get install codespell")
    paths = [path.as_posix() for path in checklib.tracked_files(root)]
    paths = [path for path in paths if not path.startswith(EXCLUDED)]
    # An empty configuration: that of the user's machine counts for nothing.
    command = ["codespell", "--config", "/dev/null", "--disable-colors", "--ignore-words-list", ",".join(IGNORED)]
    done = subprocess.run([*command, "--", *paths], cwd=root, capture_output=True, text=True)
    findings = [line.removeprefix("./") for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 and not findings:
        return [f"codespell ended with status {done.returncode}: {done.stderr.strip()}"]
    return findings


WRONG = "t" + "eh"  # this file is checked too
CASES = [
    ("a comment", {"src/a.cc": f"// {WRONG} key\n"}, f"src/a.cc:1: {WRONG} ==> the"),
    ("prose", {"docs/a.md": f"Right.\n\n{WRONG.capitalize()} end.\n"}, "docs/a.md:3"),
    ("names of the code", {"src/a.cc": "float* dout = kInf;\n"}, None),
    ("what tests compare with", {"tests/golden/a.json": f'"{WRONG}"\n', "README.md": "The end.\n"}, None),
]


if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
