#!/usr/bin/env python3
"""Every link of the tree's Markdown leads to a file or heading that exists, and every path in `code` to a file.

Checked: links and images with a relative target, anchors of headings, and code spans that hold a path from the top of
the tree. Links with a scheme (https:) are not followed. Links hold in the source distribution too, and the page of the
Python package, which no tree surrounds, has none (pyproject.toml).
"""

import functools
import pathlib
import posixpath
import re

import checklib

FENCE = re.compile(r"^ {0,3}(```|~~~)")
HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(\S+)")
CODE_SPAN = re.compile(r"(`+)(.+?)\1")
# A path from the top of the tree; * matches within a name, ** any folders, {a,b} either. build/ is no part of the tree.
PATH = re.compile(r"(?:bench|cli|cmake|docs|examples|include|lab|python|src|tests|tools)/[\w./*{},-]*")


def lines_of(text):
    """(number, line) of the lines outside of fenced code."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark and fence in (None, mark[1]):
            fence = None if fence else mark[1]
        elif not fence:
            yield number, line


def slug_of(heading):
    """The anchor that forges, and the site, give a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")


def anchors_of(text):
    anchors = {}
    for _, line in lines_of(text):
        heading = HEADING.match(line)
        if heading:
            slug = slug_of(heading[2])
            anchors[slug] = anchors.get(slug, -1) + 1
    return {name if i == 0 else f"{name}-{i}" for name, most in anchors.items() for i in range(most + 1)}


def links_of(line):
    """The targets of a line without its code spans."""
    bare = CODE_SPAN.sub("``", line)
    reference = REFERENCE.match(bare)
    return LINK.findall(bare) + ([reference[1]] if reference else [])


def pattern_of(path):
    """A regular expression for a path with wildcards."""
    text = re.escape(path).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    return re.sub(r"\\\{(.*?)\\\}", lambda m: "(?:" + m[1].replace(",", "|") + ")", text)


def setting(project, name):
    """The texts of a line of pyproject.toml: readme = "x", sdist.exclude = ["x", "y"]."""
    line = re.search(rf"^{re.escape(name)} = (.*)$", project, re.MULTILINE)
    return re.findall(r'"(.+?)"', line[1]) if line else []


class Tree:
    def __init__(self, root):
        self.root = root
        project = root / "pyproject.toml"
        project = project.read_text(encoding="utf-8") if project.is_file() else ""
        self.package_pages = set(setting(project, "readme"))
        self.undistributed = tuple(f"{folder}/" for folder in setting(project, "sdist.exclude"))
        self.files = {path.as_posix() for path in checklib.tracked_files(root)}
        self.folders = {parent.as_posix() for name in self.files for parent in pathlib.PurePosixPath(name).parents}

    @functools.cache
    def anchors(self, name):
        return anchors_of(checklib.read_text(self.root / name) or "")

    def wrong_link(self, page, target):
        """What is wrong with a link of a page, or None."""
        if re.match(r"[a-zA-Z][a-zA-Z+.-]*:", target):
            return None
        if page in self.package_pages:
            return f"'{target}': the page of the package stands alone; say it without a link"
        path, _, anchor = target.partition("#")
        if path.startswith("/"):
            return f"'{target}' is absolute: write it relative to the page"
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if name not in self.files and name not in self.folders:
            return f"'{target}' leads to no file"
        if f"{name}/".startswith(self.undistributed) and not page.startswith(self.undistributed):
            return f"'{target}' is not in the source distribution; name it in code"
        if not anchor:
            return None
        if not name.endswith(".md"):
            return f"'{target}': only headings of Markdown have anchors here; name the symbol"
        return None if anchor in self.anchors(name) else f"'{target}': no heading of {name} has this anchor"

    def has_path(self, path):
        if path.rstrip("/") in self.folders:
            return True
        pattern = re.compile(pattern_of(path.rstrip("/")))
        return any(pattern.fullmatch(name) for name in self.files | self.folders)


def check(root):
    tree, findings = Tree(root), []
    for page in sorted(name for name in tree.files if name.endswith(".md")):
        for number, line in lines_of(checklib.read_text(root / page) or ""):
            wrong = [tree.wrong_link(page, target) for target in links_of(line)]
            spans = (span[2].strip() for span in CODE_SPAN.finditer(line))
            wrong += [f"`{s}`: there is no such file" for s in spans if PATH.fullmatch(s) and not tree.has_path(s)]
            findings += [f"{page}:{number}: {text}" for text in wrong if text]
    return findings


PROJECT = {"pyproject.toml": 'readme = "p.md"\nsdist.exclude = [".ci", "tests"]\n'}
CASES = [
    ("a file", {"a.md": "[b](docs/b.md) and ![c](docs/c.svg)", "docs/b.md": "", "docs/c.svg": ""}, None),
    ("no file", {"a.md": "first\nsee [b](docs/b.md)"}, "a.md:2: 'docs/b.md' leads to no file"),
    ("no image", {"a.md": "![plot](b.svg)"}, "'b.svg' leads to no file"),
    ("a folder", {"docs/a.md": "[b](../src/)", "src/b.h": ""}, None),
    ("up and out", {"a.md": "[b](../b.md)"}, "'../b.md' leads to no file"),
    ("from the top", {"a.md": "[b](/b.md)", "b.md": ""}, "is absolute"),
    ("another site", {"a.md": "[b](https://example.org/b#c)"}, None),
    ("a heading", {"a.md": "[b](b.md#how-its-done)", "b.md": "# How it's done\n"}, None),
    ("no heading", {"a.md": "[b](b.md#how)", "b.md": "# How it's done\n"}, "no heading of b.md"),
    ("a heading of its own", {"a.md": "[b](#b-c) \n\n## `b`: c\n"}, None),
    ("the second of its name", {"a.md": "[b](#b-1)\n# B\n# B\n"}, None),
    ("the third of its name", {"a.md": "[b](#b-2)\n# B\n# B\n"}, "no heading of a.md"),
    ("a heading in code", {"a.md": "[b](#b)\n```\n# b\n```\n"}, "no heading of a.md"),
    ("a line", {"a.md": "[b](b.cc#L3)", "b.cc": "\n\n\n"}, "name the symbol"),
    ("code", {"a.md": "`[b](b.md)`\n```sh\n[c](c.md)\n```\n"}, None),
    ("link text in code", {"a.md": "[`b`](b.md)"}, "'b.md' leads to no file"),
    ("a reference", {"a.md": "see [b]\n\n[b]: b.md\n"}, "'b.md' leads to no file"),
    ("distributed", {**PROJECT, "docs/a.md": "[b](../src/b.h)", "src/b.h": ""}, None),
    ("not distributed", {**PROJECT, "a.md": "[b](tests/b.h)", "tests/b.h": ""}, "not in the source distribution"),
    ("not distributed itself", {**PROJECT, "tests/a.md": "[b](b.h)", "tests/b.h": ""}, None),
    ("the package", {**PROJECT, "p.md": "[b](https://example.org) [c](#c)\n# C\n"}, "stands alone"),
    ("a path", {"a.md": "`src/a.h`, `src/`, `src/*.h`, `src/{a,b}.h`", "src/a.h": ""}, None),
    ("a path below", {"a.md": "`src/**/c.h`", "src/x/c.h": ""}, None),
    ("no path", {"a.md": "`src/b.h`", "src/a.h": ""}, "`src/b.h`: there is no such file"),
    ("no path of a pattern", {"a.md": "`src/*.cu`", "src/a.h": ""}, "`src/*.cu`: there is no such file"),
    ("no path but code", {"a.md": "`src/a.h --flag` and `docs`"}, None),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
