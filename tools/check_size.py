#!/usr/bin/env python3
"""Files of at most 500 lines, host functions of at most 60, device functions of at most 150, C++ lines of at most 100
columns (others: 120).

A function's length is counted from its first line to its closing brace, by matching braces: an approximation that
knows comments, literals and preprocessor lines, and nothing else of C++. A function that only returns a braced list is
a table, of any length.
"""

import re

import checklib

FILE_LINES = 500
# A kernel that reads from top to bottom, producers and consumers beside each other, is one file.
LONGER_FILES = {"src/backends/cuda/sm90/fwd/kernel.cuh": 700}
FUNCTION_LINES = 60
DEVICE_FUNCTION_LINES = 150
CPP_COLUMNS = 100
OTHER_COLUMNS = 120
CPP = {".h", ".hpp", ".cc", ".c", ".cpp", ".cu", ".cuh"}
OTHERS = {".py", ".sh", ".cmake"}
OTHER_NAMES = {"dev", "CMakeLists.txt", ".ci/run"}

HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^()\\\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
SCOPE = re.compile(r'^(?:\[\[[^\]]*\]\]\s*)?(?:(?:inline|typedef|static|const|constexpr)\s+)*'
                   r'(?:namespace|class|struct|union|enum|extern\b(?!.*\())')
DEVICE = re.compile(r"\b__(?:global|device)__\b")
TABLE = re.compile(r"\s*return\s*\{")
TEMPLATE = re.compile(r"^\s*template\s*<")


def blanked(text):
    """The text with comments, literals and preprocessor lines turned to blanks, lines kept."""
    return HIDDEN.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def without_template(header):
    while TEMPLATE.match(header):
        depth = 0
        end = len(header)
        for i, char in enumerate(header):
            depth += (char == "<") - (char == ">")
            if char == ">" and depth == 0:
                end = i + 1
                break
        header = header[end:]
    return header.strip()


def kind_of(header):
    """What a brace after this text opens: a scope, a function, or data."""
    header = without_template(header)
    if SCOPE.match(header) and not re.search(r"\)\s*(const|noexcept|override|final|\s)*$", header):
        return "scope"
    return "function" if "(" in header and not header.endswith("=") else "data"


def bodies(text):
    """(first line, last line, kind, header, header of the scope around it) of each function body at namespace or class
    scope. The kind is "function" or "table"."""
    stack, header, header_line, line = [], "", 1, 1
    text = blanked(text)
    for position, char in enumerate(text):
        if char == "\n":
            line += 1
        inside = bool(stack) and stack[-1][0] != "scope"
        if char == "{":
            kind = "inner" if inside else kind_of(header)
            if kind == "function" and TABLE.match(text, position + 1):
                kind = "table"
            stack.append((kind, header, header_line))
            header = "" if kind == "scope" else header
        elif char == "}" and stack:
            kind, opened, first = stack.pop()
            if kind in ("function", "table"):
                yield first, line, kind, opened, stack[-1][1] if stack else ""
            if kind in ("function", "table", "scope"):
                header = ""
        elif inside:
            continue
        elif char == ";":
            header = ""
        elif header or not char.isspace():
            if not header:
                header_line = line
            header += char


def name_of(header):
    name = re.search(r"([~\w:]+|operator\S+)\s*\(", without_template(header))
    return name.group(1) if name else "?"


def functions(text):
    """(first line, last line, name, most lines) of each function body that is no table."""
    for first, last, kind, header, _ in bodies(text):
        if kind == "function":
            yield first, last, name_of(header), DEVICE_FUNCTION_LINES if DEVICE.search(header) else FUNCTION_LINES


def check_file(path, text):
    findings = []
    lines = text.splitlines()
    cpp = path.suffix in CPP
    most = LONGER_FILES.get(path.as_posix(), FILE_LINES)
    if len(lines) > most:
        findings.append(f"{path}: {len(lines)} lines, at most {most}")
    columns = CPP_COLUMNS if cpp else OTHER_COLUMNS
    for number, line in enumerate(lines, 1):
        if len(line) > columns and "://" not in line:
            findings.append(f"{path}:{number}: {len(line)} columns, at most {columns}")
    for first, last, name, most in functions(text) if cpp else ():
        if last - first + 1 > most:
            findings.append(f"{path}:{first}: {name} has {last - first + 1} lines, at most {most}")
    return findings


def check(root):
    findings = []
    for path in checklib.tracked_files(root):
        named = path.name in OTHER_NAMES or path.as_posix() in OTHER_NAMES
        if path.suffix in CPP | OTHERS or named:
            findings += check_file(path, checklib.read_text(root / path) or "")
    return findings


def body(count):
    return "  step();\n" * count


CASES = [
    ("short", {"a.cc": "int f() {\n" + body(58) + "}\n"}, None),
    ("long function", {"a.cc": "int f() {\n" + body(59) + "}\n"}, "f has 61 lines"),
    ("device function", {"a.cuh": "template <int N>\n__device__ void f() {\n" + body(147) + "}\n"}, None),
    ("long kernel", {"a.cu": "__global__ void f() {\n" + body(149) + "}\n"}, "f has 151 lines, at most 150"),
    ("host, .cu", {"a.cu": "void f() {\n" + body(59) + "}\n"}, "f has 61 lines, at most 60"),
    ("in a namespace", {"a.cc": "namespace a {\nint f(int b) {\n" + body(60) + "}\n}\n"}, "a.cc:2: f has 62"),
    ("in a class", {"a.h": "template <class T>\nstruct S : B {\nint f() const {\n" + body(60) + "}\n};\n"}, "a.h:3: f"),
    ("template", {"a.h": "template <class T,\n class U>\nvoid f(T a = {}) {\n" + body(60) + "}\n"}, "f has 64 lines"),
    ("constructor", {"a.cc": "S::S(int a) : a_{a}, b_(1) {\n" + body(60) + "}\n"}, "has 62 lines"),
    ("test body", {"a.cc": "TEST(A, B) {\n" + body(60) + "}\n"}, "TEST has 62 lines"),
    ("nested blocks", {"a.cc": "int f() {\n if (a) {\n" + body(60) + "}\n}\n"}, "f has 64 lines"),
    ("long class", {"a.h": "class S final {\n" + "  void f(int a) { g(a); }\n" * 90 + "};\n"}, None),
    ("data", {"a.cc": "const int a[] = {\n" + "1,\n" * 90 + "};\n"}, None),
    ("table", {"a.cc": "std::vector<int> f() {\n return {\n" + "  1,\n" * 90 + "};\n}\n"}, None),
    ("after a table", {"a.cc": "T f() {\n return {1};\n}\nT g() {\n" + body(60) + "}\n"}, "a.cc:4: g has 62"),
    ("braces in literals", {"a.cc": "void f() { g('{', \"{\", R\"(\n{)\"); }\n" + "void h() {}\n" * 80}, None),
    ("brace in a comment", {"a.cc": "// {\n/* { */\n#define A {\n" + "void h() {}\n" * 80}, None),
    ("long file", {"a.py": "a = 1\n" * 501}, "501 lines, at most 500"),
    ("file at the limit", {"a.py": "a = 1\n" * 500}, None),
    ("longer by name", {"src/backends/cuda/sm90/fwd/kernel.cuh": "int a;\n" * 700}, None),
    ("too long for its name", {"src/backends/cuda/sm90/fwd/kernel.cuh": "int a;\n" * 701}, "701 lines, at most 700"),
    ("wide C++", {"a.h": "//" + "a" * 99 + "\n"}, "101 columns, at most 100"),
    ("wide CMake", {"b/CMakeLists.txt": "#" + "a" * 120 + "\n"}, "121 columns, at most 120"),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
