#!/usr/bin/env python3
"""No tracked file names a path of one machine, a folder outside the tree or a registry's host."""

import checklib

WORDS = [
    "/work/",
    "../shared",
    "$OUT",
    "deb.debian.org",
    "security.debian.org",
    "pypi.org",
    "files.pythonhosted.org",
    "pypi.nvidia.com",
]
# The list itself.
EXCLUDED = {"tools/check_words.py"}


def check(root):
    findings = []
    for path in checklib.tracked_files(root):
        if path.as_posix() in EXCLUDED:
            continue
        for number, line in enumerate((checklib.read_text(root / path) or "").splitlines(), 1):
            findings += [f"{path}:{number}: '{word}'" for word in WORDS if has_word(line, word)]
    return findings


def has_word(line, word):
    """A word counts where no longer name holds it: $OUTPUT is not $OUT."""
    start = line.find(word)
    while start >= 0:
        rest = line[start + len(word) :]
        if word.endswith("/") or not (rest[:1].isalnum() or rest[:1] == "_"):
            return True
        start = line.find(word, start + 1)
    return False


CASES = [
    ("clean", {"a.txt": "work/ and shared/ and $OUTPUT\n"}, None),
    ("not text", {"a.bin": "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")}, None),
] + [(word, {"docs/a.md": f"first line\nsee {word} there\n"}, f"docs/a.md:2: '{word}'") for word in WORDS]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
