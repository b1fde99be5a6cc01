#!/usr/bin/env python3
"""ARCHITECTURE.md says what is in the tree: its layers, its folders, its files and the order of its kernels.

- The table of layers has the folders of src/, in the order that tools/check_layers.py enforces.
- A heading that ends with a folder of src/ in `code` has a bullet "- **name/**" for every folder below it with files.
- Rows that begin with a name of LISTS hold the kernels of that device and phase, in the order of its kernels.cc.
- A path or file name in `code` is the end of a path in the tree.
"""

import pathlib
import re

import check_layers
import check_links
import checklib

PAGE = "ARCHITECTURE.md"
# First cells of a row of kernels: the backend, and which branch of its #if counts.
LISTS = {
    "CPU, x86-64": ("cpu", "x86_64"),
    "CPU, 64-bit Arm": ("cpu", "aarch64"),
    "CUDA": ("cuda", ""),
}
PHASES = ("forward", "backward")
FILE = re.compile(r"[\w./*{},-]+(?:/|\.(?:cc|h|hpp|cuh|cu|py|md|sh|cmake|map|abi))")


def text_of(root, name):
    return checklib.read_text(root / name) or "" if (root / name).is_file() else ""


def spans_of(line):
    return [span[2].strip() for span in check_links.CODE_SPAN.finditer(line)]


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def list_of(text, phase, machine):
    """What a kernels.cc lists, as 'namespace::kSymbol'."""
    body = re.search(rf"{phase}_kernels\(\) \{{(.*?)^\}}", text, re.DOTALL | re.MULTILINE)
    symbols, branch = [], None
    for line in (body[1] if body else "").splitlines():
        condition = re.match(r"#(?:el)?if defined\(__(\w+)__\)", line)
        branch = condition[1] if condition else None if line.startswith("#endif") else branch
        symbol = re.match(r"\s+((?:\w+::)*k\w+),$", line)
        if symbol and branch in (None, machine):
            symbols.append(symbol[1])
    return symbols


def name_of(root, tree, backend, symbol):
    """The text that the definition of a kernel begins with: its name."""
    namespace, _, constant = symbol.rpartition("::")
    opening = "namespace " + "::".join(["headrace", backend, *filter(None, [namespace])]) + " {"
    for path in sorted(tree.files):
        if path.startswith(f"src/backends/{backend}/") and path.endswith(".cc"):
            text = text_of(root, path)
            found = re.search(rf'^const Kernel {constant}\b[^"]*"(\w+)"', text, re.MULTILINE)
            if found and opening in text:
                return found[1]
    return symbol


def check_kernels(root, tree, lines):
    rows, findings = {}, []
    for line in lines:
        cells = cells_of(line)
        if len(cells) > 2 and cells[0] in LISTS and cells[1] in PHASES:
            rows[cells[0], cells[1]] = spans_of(cells[2])
    for title, (backend, machine) in LISTS.items():
        source = text_of(root, f"src/backends/{backend}/kernels.cc")
        for phase in PHASES:
            names = [name_of(root, tree, backend, s) for s in list_of(source, phase, machine)]
            if rows.get((title, phase), []) != names:
                findings.append(f"{PAGE}: '{title} | {phase}' must list {', '.join(names) or 'nothing'}, in this order")
    return findings


def check_layer_table(tree, lines):
    said = [f"src/{row[1]}/" for line in lines if (row := re.match(r"\| (\w+) \| `src/\1/", line))]
    folders = {name.split("/")[1] for name in tree.folders if name.startswith("src/")}
    expected = [f"src/{name}/" for name in check_layers.LAYERS if name in folders]
    expected += sorted(f"src/{name}/" for name in folders - set(check_layers.LAYERS))
    return [] if said == expected else [f"{PAGE}: the layers must be {', '.join(expected) or 'none'}, in this order"]


def check_folders(tree, lines):
    """The bullets of each section about a folder."""
    findings, folder, said = [], None, set()

    def close():
        if folder is None:
            return []
        below = {name.removeprefix(folder).rpartition("/")[0] + "/" for name in tree.files if name.startswith(folder)}
        below.discard("/")
        wrong = [f"{PAGE}: {folder} has no bullet **{name}**" for name in sorted(below - said)]
        return wrong + [f"{PAGE}: **{name}** is no folder of {folder}" for name in sorted(said - below)]

    for line in lines:
        heading = check_links.HEADING.match(line)
        if heading:
            findings += close()
            about = [span for span in spans_of(line) if re.fullmatch(r"src/[\w/]+/", span)]
            folder, said = (about[-1] if about else None), set()
        bullet = re.match(r"- \*\*([\w/]+/)\*\*", line)
        if bullet:
            said.add(bullet[1])
    return findings + close()


def check_names(tree, lines):
    """Names of files and folders, by the end of their path."""
    findings = []
    for line in lines:
        for span in spans_of(line):
            pattern = re.compile("(?:.*/)?" + check_links.pattern_of(span.rstrip("/")))
            if FILE.fullmatch(span) and not any(pattern.fullmatch(name) for name in tree.files | tree.folders):
                findings.append(f"{PAGE}: `{span}` names nothing in the tree")
    return findings


def check(root):
    tree = check_links.Tree(root)
    lines = [line for _, line in check_links.lines_of(text_of(root, PAGE))]
    findings = check_kernels(root, tree, lines) + check_layer_table(tree, lines)
    return findings + check_folders(tree, lines) + check_names(tree, lines)


TITLES = "".join(f"| {title} | {phase} | |\n" for title in LISTS for phase in PHASES)


SOURCES = {
    "kernels.cc": "std::span<const Kernel> forward_kernels() {\n    a::kFast,\n    b::kSlow,\n}\n",
    "a/x.cc": 'namespace headrace::cuda::a {\nconst Kernel kFast = {\n    .name = "fast",\n',
    "b/x.cc": 'namespace headrace::cuda::b {\nconst Kernel kSlow = make<1>(\n    "slow", "last");\n',
    "c/x.cc": 'namespace headrace::cuda::c {\nconst Kernel kFast = {\n    .name = "other",\n',
}


def page(text):
    """A tree with one list of kernels, whose page leaves the other lists empty."""
    rest = "".join(row + "\n" for row in TITLES.splitlines() if not row.startswith("| CUDA | forward"))
    table = f"| layer | folder |\n| backends | `src/backends/` |\n{rest}"
    return {PAGE: f"{text}\n\n{table}", **{f"src/backends/cuda/{name}": code for name, code in SOURCES.items()}}


ROW = "| CUDA | forward | `fast`, `slow` |\n"
FOLDERS = "## Inside: `src/backends/cuda/`\n- **a/** x\n- **b/** y\n- **c/** z\n"
CASES = [
    ("kernels", page(ROW), None),
    ("another order", page("| CUDA | forward | `slow`, `fast` |\n"), "must list fast, slow"),
    ("one too few", page("| CUDA | forward | `fast` |\n"), "must list fast, slow"),
    ("one that is gone", page("| CUDA | forward | `fast`, `slow`, `old` |\n"), "must list fast, slow"),
    ("no row", page(""), "'CUDA | forward' must list fast, slow"),
    ("folders", page(ROW + FOLDERS), None),
    ("a folder is missing", page(ROW + FOLDERS.replace("- **b/** y\n", "")), "src/backends/cuda/ has no bullet **b/**"),
    ("a folder is gone", page(ROW + FOLDERS + "- **d/** x\n"), "**d/** is no folder of src/backends/cuda/"),
    ("a new layer", {**page(ROW), "src/base/a.h": ""}, "the layers must be src/base/, src/backends/"),
    ("layers in order", {**page(ROW + "| backends | `src/backends/` |\n"), "src/core/a.h": ""}, "in this order"),
    ("a file", page(ROW + "`b/x.cc`, `*/x.cc` and `kernels.cc`\n"), None),
    ("a file that is gone", page(ROW + "`b/y.cc`\n"), "`b/y.cc` names nothing"),
    ("the end of a name", page(ROW + "`ernels.cc`\n"), "`ernels.cc` names nothing"),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
