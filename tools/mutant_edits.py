"""The edits of a mutant: hunks of a diff that are found by their text, without line numbers.

    file: src/base/utf8.cc
    @@
     context, as little as makes the text unique in its file
    -removed
    +added

The search text of an edit is its context and its removed lines. It must be found exactly once; white space at either
end of a line does not count.
"""

import dataclasses
import re
import subprocess

FILE, EDIT = "file: ", "@@"
SHOWN = 3  # lines of a search text in a message


class Wrong(Exception):
    """Edits that cannot be read, planted or made; the text is the finding."""


@dataclasses.dataclass(frozen=True)
class Edit:
    file: str
    lines: tuple  # (one of " -+", the text)

    @property
    def search(self):
        return [text.strip() for sign, text in self.lines if sign != "+"]

    def replacement(self, found):
        """`found`: the lines of the file that the search text matched."""
        found, result = iter(found), []
        for sign, text in self.lines:
            line = text if sign == "+" else next(found)
            result += [] if sign == "-" else [line]
        return result


# ---- reading and writing ----


def parse(text):
    """The edits of a mutant's text behind its head."""
    edits, file, lines = [], None, None

    def end():
        while lines and lines[-1] == (" ", ""):
            lines.pop()
        if lines is not None:
            edits.append(checked(Edit(file, tuple(lines))))

    for line in text.splitlines():
        if line.startswith(FILE) or line == EDIT:
            end()
            file, lines = (line[len(FILE):].strip(), None) if line != EDIT else (file, [])
        elif lines is not None and line[:1] in ("", " ", "-", "+"):
            lines.append((line[:1] or " ", line[1:]))
        elif line.strip():
            raise Wrong(f"'{line}' is no line of an edit: begin it with a space, - or +, below '{EDIT}'")
    end()
    if not edits:
        raise Wrong(f"it has no edit: write '{FILE}PATH', '{EDIT}' and what to search and change below its head")
    return tuple(edits)


def checked(edit):
    if not edit.file:
        raise Wrong(f"an edit names no file: write '{FILE}PATH' before '{EDIT}'")
    if not any(edit.search):
        raise Wrong(f"an edit of {edit.file} searches for nothing: add a line of context to it")
    if all(sign == " " for sign, _ in edit.lines):
        raise Wrong(f"an edit of {edit.file} changes nothing: it has neither a - nor a + line")
    return edit


def to_text(edits):
    lines, file = [], None
    for edit in edits:
        if edit.file != file:
            lines += ["", FILE + edit.file]
            file = edit.file
        lines += [EDIT, *((sign + text if text or sign != " " else "") for sign, text in edit.lines)]
    return "\n".join(lines[1:]) + "\n"


# ---- planting ----


def places(lines, search):
    """Where the search text begins in the lines of a file, all of them stripped."""
    return [i for i in range(len(lines) - len(search) + 1) if lines[i : i + len(search)] == search]


def planted(tree, edits):
    """{file: its text with the edits}, which are all searched in the text of before; Wrong where one does not fit."""
    changes = {}  # of a file: (begin, end, edit)
    texts = {}
    for edit in edits:
        if edit.file not in texts:
            if not (tree / edit.file).is_file():
                raise Wrong(f"{edit.file}: there is no such file: name the one that has the text now")
            texts[edit.file] = (tree / edit.file).read_text(encoding="utf-8").split("\n")
        begins = places([line.strip() for line in texts[edit.file]], edit.search)
        if len(begins) != 1:
            raise Wrong(not_once(edit, begins))
        changes.setdefault(edit.file, []).append((begins[0], begins[0] + len(edit.search), edit))
    for file, ranges in changes.items():
        ranges.sort(key=lambda change: change[0])
        for (_, end, _), (begin, _, _) in zip(ranges, ranges[1:]):
            if begin < end:
                raise Wrong(f"{file}:{begin + 1}: two edits search this line: make them one")
        for begin, end, edit in reversed(ranges):
            texts[file][begin:end] = edit.replacement(texts[file][begin:end])
    return {file: "\n".join(texts[file]) for file in changes}


def not_once(edit, begins):
    shown = "".join(f"\n    {line}" for line in edit.search[:SHOWN])
    more = "\n    ..." if len(edit.search) > SHOWN else ""
    where = f" (lines {', '.join(str(begin + 1) for begin in begins)})" if begins else ""
    remedy = "add context until it is unique" if begins else "follow the change of the file"
    return f"{edit.file}: found {len(begins)} times{where}, must be found once: {remedy}:{shown}{more}"


def plant(tree, edits):
    """None, or why the tree stays as it is."""
    try:
        texts = planted(tree, edits)
    except Wrong as wrong:
        return str(wrong)
    for file, text in texts.items():
        (tree / file).write_text(text, encoding="utf-8")
    return None


# ---- making them of what git sees changed ----


def git(root, *arguments):
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise Wrong(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def from_working_tree(root):
    """The edits that make the tracked files of HEAD those of the working tree."""
    edits = []
    for line in git(root, "diff", "--name-status", "--no-renames", "HEAD").splitlines():
        status, file = line.split("\t")
        if status != "M":
            raise Wrong(f"{file} is added or removed: a mutant changes files of HEAD; undo that, or commit it first")
        edits += from_file(root, file)
    if not edits:
        raise Wrong("no tracked file differs from HEAD: plant the bug in the working tree first")
    return tuple(edits)


def from_file(root, file):
    old = git(root, "show", f"HEAD:{file}").split("\n")
    new = (root / file).read_text(encoding="utf-8").split("\n")
    diff = git(root, "diff", "-U0", "--no-color", "--no-ext-diff", "HEAD", "--", file)
    hunks = []  # (begin, end, lines that come instead)
    for match in re.finditer(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", diff, re.MULTILINE):
        begin, removed, to, added = (1 if number is None else int(number) for number in match.groups())
        begin -= removed > 0  # a range of no lines names the line before it
        to -= added > 0
        hunks.append((begin, begin + removed, new[to : to + added]))
    stripped = [line.strip() for line in old]
    ranges = []  # (begin, end, the hunks in it)
    for hunk in hunks:
        (begin, end), inside = unique_range(stripped, hunk[0], hunk[1]), [hunk]
        while ranges and begin < ranges[-1][1]:
            first, last, earlier = ranges.pop()
            begin, end, inside = min(begin, first), max(end, last), earlier + inside
        ranges.append((begin, end, inside))
    return [Edit(file, tuple(signed(old, *chosen))) for chosen in ranges]


def unique_range(lines, begin, end):
    """The fewest lines around those that are found once, and neither begin nor end with a blank line of context."""
    for more in range(len(lines)):
        for before in range(more, -1, -1):
            first, last = begin - before, end + more - before
            if first < 0 or last > len(lines) or not any(lines[first:last]):
                continue
            edges = [lines[first]] * (before > 0) + [lines[last - 1]] * (more > before)
            if all(edges) and len(places(lines, lines[first:last])) == 1:
                return first, last
    raise Wrong("a changed file has no text that is found once")


def signed(old, begin, end, hunks):
    for first, last, added in hunks:
        yield from ((" ", line) for line in old[begin:first])
        yield from (("-", line) for line in old[first:last])
        yield from (("+", line) for line in added)
        begin = last
    yield from ((" ", line) for line in old[begin:end])
