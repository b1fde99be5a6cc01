#!/usr/bin/env python3
"""The walk through the code, docs/reading.md: each place that it names is where it says.

A place is a line of the form

    - [src/a/b.cc](../src/a/b.cc): `symbol`

with a symbol that the file defines: a function with a body, a type, a constant or a macro (`Class::member`: within that
class), or else a text that the file contains. There are STEPS headings "## 1. ...", each with a place; the bullets of a
step are places.
"""

import bisect
import re

import checklib

PAGE = "docs/reading.md"
STEPS = 10
PLACE = re.compile(r"- \[(?P<file>[^\]]+)\]\(\.\./(?P<link>[^)]+)\): `(?P<symbol>[^`]+)`$")
STEP = re.compile(r"## (\d+)\. ")
PAIRS = {"(": ")", "{": "}"}


def without_comments(text):
    """The same text with blanks for comments and the insides of strings: every offset stays."""
    blank = lambda found: re.sub(r"[^\n]", " ", found[0])  # noqa: E731
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.DOTALL)


def end_of_pair(code, begin):
    """Where the bracket at begin closes."""
    depth = 0
    for i in range(begin, len(code)):
        depth += (code[i] == code[begin]) - (code[i] == PAIRS[code[begin]])
        if depth == 0:
            return i
    return len(code) - 1


def functions(code, word):
    """(begin, end) of the functions of a name: parentheses, then a body."""
    opening = re.compile(r"\s*(?:const\b|noexcept\b|override\b|->[^;{]*|\s)*\{")
    for found in re.finditer(rf"\b{word}\(", code):
        body = opening.match(code, end_of_pair(code, found.end() - 1) + 1)
        if body:
            yield found.start(), end_of_pair(code, body.end() - 1)


def definition(code, symbol):
    """(begin, end) of the definition of a name in code without comments, or None. Of overloads the longest one."""
    word = re.escape(symbol)
    longest = max(functions(code, word), key=lambda span: span[1] - span[0], default=None)
    if longest:
        return longest
    forms = (
        rf"\b(?:struct|class|enum|union)\s+(?:class\s+)?{word}\b[^;{{]*\{{",
        rf"\bconst(?:expr)?\b[^;(){{}}]*\b{word}\b(?:\[[^\]]*\])?\s*=\s*\{{",
    )
    for form in forms:
        found = re.search(form, code)
        if found:
            return found.start(), end_of_pair(code, found.end() - 1)
    found = re.search(rf"\bconst(?:expr)?\b[^;(){{}}]*\b{word}\s*=[^;]*;|#define {word}\b.*", code)
    return found and found.span()


def find(text, symbol):
    """(first, last) line of a symbol in the text of a file, or None."""
    if re.fullmatch(r"\w+(::\w+)*", symbol):
        code, span = without_comments(text), (0, len(text))
        for part in symbol.split("::"):
            inner = definition(code[span[0] : span[1]], part)
            if inner is None:
                return None
            span = span[0] + inner[0], span[0] + inner[1]
    else:
        begin = text.find(symbol)
        if begin < 0:
            return None
        span = begin, begin
    starts = [0] + [i + 1 for i, letter in enumerate(text) if letter == "\n"]
    return bisect.bisect_right(starts, span[0]), bisect.bisect_right(starts, span[1])


def steps_of(text):
    """The number of each step and its bullets, as (number of the line, line)."""
    steps, bullets = [], []
    for number, line in enumerate(text.splitlines(), 1):
        step = STEP.match(line)
        if line.startswith("## "):
            bullets = []
        if step:
            steps.append((int(step[1]), bullets))
        elif line.startswith("- "):
            bullets.append((number, line))
    return steps


def wrong_place(root, line):
    place = PLACE.match(line)
    if not place:
        return "write - [src/file](../src/file): `symbol`"
    if place["file"] != place["link"]:
        return f"the link of {place['file']} leads to {place['link']}"
    if not (root / place["file"]).is_file():
        return f"{place['file']} is no file"
    if not find(checklib.read_text(root / place["file"]) or "", place["symbol"]):
        return f"{place['file']} does not define `{place['symbol']}`: name the file that it moved to"
    return None


def check(root):
    if not (root / PAGE).is_file():
        return [f"{PAGE} is missing"]
    steps = steps_of(checklib.read_text(root / PAGE) or "")
    numbers = [number for number, _ in steps]
    findings = []
    if numbers != list(range(1, STEPS + 1)):
        findings.append(f"{PAGE}: the steps must be ## 1. to ## {STEPS}., not {numbers}")
    for step, bullets in steps:
        if not bullets:
            findings.append(f"{PAGE}: step {step} names no place")
        wrong = [(number, wrong_place(root, line)) for number, line in bullets]
        findings += [f"{PAGE}:{number}: {text}" for number, text in wrong if text]
    return findings


def page(place, source, steps=STEPS, end=""):
    """A walk whose every step is one place in src/a.cc."""
    return {PAGE: "".join(f"## {i + 1}. s\n\n{place}\n\n" for i in range(steps)) + end, "src/a.cc": source}


def place(symbol):
    return f"- [src/a.cc](../src/a.cc): `{symbol}`"


GONE = "src/a.cc does not define"
CASES = [
    ("a function", page(place("f"), "int f(int (*x)(int), int y) {\n}\n"), None),
    ("a const member", page(place("C::f"), "class C {\n  bool f(int x) const {\n  }\n};\n"), None),
    ("a declaration", page(place("f"), "int f(int x);\n"), GONE),
    ("a call", page(place("f"), "int g() {\n  if (f(1)) {\n  }\n  return f(2);\n}\n"), GONE),
    ("a comment", page(place("f"), "// f(x) {}\n/* f(x) {} */\n"), GONE),
    ("a longer name", page(place("f"), "int ff(int x) {\n}\n"), GONE),
    ("a member of another class", page(place("C::f"), "class C {\n};\nclass D {\n  int f() {\n  }\n};\n"), GONE),
    ("a type", page(place("S"), "struct S : T {\n};\n"), None),
    ("a type that is declared", page(place("S"), "struct S;\n"), GONE),
    ("a table", page(place("kRows"), "constexpr Row kRows[] = {\n  {1},\n};\n"), None),
    ("a constant", page(place("kRows"), "inline constexpr int kRows = 3;\n"), None),
    ("a use of a constant", page(place("kRows"), "int x = kRows;\n"), GONE),
    ("a macro", page(place("M"), "#define M(x) x\n"), None),
    ("a text", page(place("// ---- the end"), "// ---- the end\n"), None),
    ("a text that is gone", page(place("// ---- the end"), "// ---- the beginning\n"), GONE),
    ("no file", page("- [src/b.cc](../src/b.cc): `f`", ""), "src/b.cc is no file"),
    ("another link", page("- [src/b.cc](../src/a.cc): `f`", ""), "the link of src/b.cc leads to src/a.cc"),
    ("no place", page("f", ""), "step 1 names no place"),
    ("no form", page("- see src/a.cc", ""), "write - [src/file]"),
    ("a bullet after the steps", page(place("f"), "int f() {\n}\n", end="## End\n- see\n"), None),
    ("too few steps", page(place("f"), "int f() {\n}\n", STEPS - 1), "the steps must be"),
    ("no page", {"a.md": ""}, "is missing"),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
