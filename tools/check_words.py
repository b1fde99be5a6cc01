#!/usr/bin/env python3
"""No tracked file names a path of one machine, a folder outside the tree or a registry's host, and no revised folder
uses a private word where the field has a term."""

import re

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
# Private words and what to write instead. Words that may also be plain English are not in the list.
PRIVATE = {
    "nobody": "name the threads, kernels or callers",
    "somebody": "name the threads, kernels or callers",
    "whoever": "name the threads, kernels or callers",
    "front door": "validation, or the public API",
    "copy engine": "TMA",
    "by the rule": "chosen automatically",
    "last kernel of the list": "slow fallback",
    "last kernel of its list": "slow fallback",
    "foretell": "predict",
    "foretells": "predicts",
    "in the mean": "on average",
    "is waited for": "finishes first",
    "are waited for": "finish first",
    "behind the end": "past the end",
    "no gguf file": "not a GGUF file",
    "one text for every": "compiled for every",
    "door": "the C API, or the entry",
    "the house": "the design, or the tree",
    "as it lies": "in place, or without conversion",
    "as they lie": "in place, or without conversion",
    "where they lie": "in place",
    "behind the file": "past the end of the file",
    "behind the last token": "of the last token",
    "falling order": "descending order",
    "list of texts": "array of strings",
    "no power of two": "not a power of two",
    "known are": "supported:",
    "made to be slow": "crafted to slow down lookups",
    "could not be had": "no memory for",
    "turn together": "RoPE rotates pairs",
    "handed in": "passed",
    "goes_on": "may_continue",
    "control_too": "ParseSpecial::all",
    "lost_bytes": "num_dropped_bytes",
}
# Whole words in any case: "by the rules" does not count as "by the rule".
PRIVATE_WORD = re.compile(rf"(?<!\w)(?:{'|'.join(PRIVATE)})(?!\w)", re.IGNORECASE)
# Folders and files that use the field's terms throughout. (CONTRIBUTING.md quotes private words as examples.)
REVISED = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "README.md",
    "bench/",
    "cli/",
    "docs/",
    "examples/",
    "include/",
    "lab/",
    "python/",
    "src/",
    "tests/",
)
# The list itself, and texts of others.
EXCLUDED = ("tools/check_words.py", "tests/golden/text/")


def check(root):
    findings = []
    for path in checklib.tracked_files(root):
        if path.as_posix().startswith(EXCLUDED):
            continue
        for number, line in enumerate((checklib.read_text(root / path) or "").splitlines(), 1):
            findings += [f"{path}:{number}: '{word}'" for word in WORDS if has_word(line, word)]
            if path.as_posix().startswith(REVISED):
                private = [word.lower() for word in PRIVATE_WORD.findall(line)]
                findings += [f"{path}:{number}: '{word}': {PRIVATE[word]}" for word in private]
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
    ("parts of words", {"src/core/a.h": "// by the rules; copy engines; nobodys_index\n"}, None),
    ("not revised", {"other/a.h": "// nobody\n"}, None),
    ("a text of others", {"tests/golden/text/a.txt": "nobody came to the door\n"}, None),
]
CASES += [(word, {"docs/a.md": f"first line\nsee {word} there\n"}, f"docs/a.md:2: '{word}'") for word in WORDS]
CASES += [(word, {"cli/a.h": f"// {word.title()}'s\n"}, f"cli/a.h:1: '{word}': {PRIVATE[word]}") for word in PRIVATE]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
