#!/usr/bin/env python3
"""The C ABI of the public headers is compatible with that of the last release, which tools/abi/headrace.abi keeps.

Functions may be added, and fields at the end of structs that begin with struct_size; anything else breaks programs
that are compiled already. `check_abi.py --renew` writes the file again: at a release, and before that where a version
may break the ABI (before 1.0 a new minor one). A stub that defines what the headers declare stands for the library: the
test Exports.OnlyHeadrace says that the library exports just that. abidw and abidiff are Debian's abigail-tools.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile

import checklib

HEADERS = [
    "headrace/headrace.h", "headrace/softmax.h", "headrace/merge_states.h", "headrace/kv_cache.h", "headrace/model.h",
    "headrace/engine.h", "headrace/grammar.h", "headrace/roofline.h", "headrace/sparq.h",
    "headrace/tuning.h",
]  # fmt: skip
STORED = "tools/abi/headrace.abi"
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
DECLARATION = re.compile(r"(HEADRACE_API[^;{]*\));")
SUMMARY = re.compile(r".* summary: ")
ABIDIFF_ERROR = 1  # a bit of its exit status
# Structs without struct_size, which never grow.
FIXED = {"headrace_tensor", "headrace_message", "headrace_logit_bias", "headrace_token_logprob"}
is_renewing = False


def stub_text(root):
    """Every declared function with a body."""
    texts = [(root / "include" / header).read_text(encoding="utf-8") for header in HEADERS]
    declared = (DECLARATION.findall(COMMENT.sub("", text)) for text in texts)
    bodies = "".join(f"{function} {{ __builtin_trap(); }}\n" for functions in declared for function in functions)
    return "".join(f"#include <{header}>\n" for header in HEADERS) + bodies


def run(*command, cwd):
    return subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)


def build_stub(root, folder):
    """What is wrong; None: the stub is in the folder, and its ABI as abidw writes it."""
    (folder / "stub.c").write_text(stub_text(root), encoding="utf-8")
    flags = ["-std=c99", "-g", "-shared", "-fPIC", "-I", root / "include"]
    made = run("cc", *flags, "-o", "stub.so", "stub.c", cwd=folder)
    if made.returncode != 0:
        return f"the headers make no stub: {made.stderr.strip()}"
    options = ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed"]
    written = run("abidw", *options, "--out-file", "stub.abi", "stub.so", cwd=folder)
    return f"abidw: {written.stderr.strip()}" if written.returncode != 0 else None


def is_growth(name, lines):
    """A struct with new fields behind all others, so that struct_size tells who knows them."""
    size = re.fullmatch(r"type size changed from (\d+) to \d+ \(in bits\)", lines[0])
    if not size or name in FIXED or not re.fullmatch(r"\d+ data member insertions?:", lines[1]):
        return False
    offsets = [re.fullmatch(r"'.*', at offset (\d+) \(in bits\)", line) for line in lines[2:]]
    return all(offset and int(offset[1]) >= int(size[1]) for offset in offsets)


def breaks(report):
    """The changes of a report of abidiff --leaf-changes-only that programs do not survive, as blocks of lines."""
    blocks = []
    for line in report.splitlines():
        if line.strip() and not SUMMARY.match(line):
            if line[0].isspace() and blocks:
                blocks[-1].append(line.strip())
            else:
                blocks.append([line])
    changed = ((re.fullmatch(r"'struct (\w+)' changed:", block[0]), block) for block in blocks)
    return [block for struct, block in changed if not (struct and is_growth(struct[1], block[1:]))]


def compare(root, folder):
    options = ["--leaf-changes-only", "--no-added-syms"]
    done = run("abidiff", *options, root / STORED, folder / "stub.abi", cwd=folder)
    broken = breaks(done.stdout)
    if done.returncode & ABIDIFF_ERROR:
        return [f"abidiff: {done.stderr.strip()}"]
    remedy = f"programs compiled with the headers of {STORED} break: undo it, or --renew it in a version that may"
    return ["; ".join(block) + f": {remedy}" for block in broken]


def check(root):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wrong = build_stub(root, folder)
        if wrong:
            return [wrong]
        if is_renewing:
            shutil.copyfile(folder / "stub.abi", root / STORED)
            return []
        return compare(root, folder)


def add_arguments(parser):
    parser.add_argument("--renew", action="store_true", help=f"write {STORED} from the headers")


def configure(args):
    global is_renewing
    is_renewing = args.renew
    for tool in ("abidw", "abidiff", "cc"):
        if not shutil.which(tool):
            raise checklib.Skip(f"no {tool} on PATH: apt-get install abigail-tools gcc")
    if args.self_test:
        CASES.extend(make_cases())


# ---- self-test: changes of a small ABI

BEFORE = {
    "include/headrace/engine.h": "",
    "include/headrace/grammar.h": "",
    "include/headrace/kv_cache.h": "",
    "include/headrace/merge_states.h": "",
    "include/headrace/model.h": "",
    "include/headrace/roofline.h": "",
    "include/headrace/softmax.h": "",
    "include/headrace/sparq.h": "",
    "include/headrace/tuning.h": "",
    "include/headrace/headrace.h": """#include <stddef.h>
#define HEADRACE_API __attribute__((visibility("default")))
typedef enum headrace_status { OK = 0 } headrace_status;
typedef struct headrace_tensor { void* data; } headrace_tensor;
typedef struct headrace_options { size_t struct_size; int a; int b; } headrace_options;
HEADRACE_API headrace_status headrace_run(const headrace_tensor* t, const headrace_options* options);
HEADRACE_API int headrace_check(int a);
""",
}
CASES = []


def make_cases():
    with tempfile.TemporaryDirectory() as tree, tempfile.TemporaryDirectory() as folder:
        checklib.write_tree(pathlib.Path(tree), BEFORE)
        wrong = build_stub(pathlib.Path(tree), pathlib.Path(folder))
        stored = wrong or (pathlib.Path(folder) / "stub.abi").read_text(encoding="utf-8")

    added = "HEADRACE_API int headrace_new(int a);\nHEADRACE_API int headrace_check"

    def case(name, old, new, expected):
        header = BEFORE["include/headrace/headrace.h"].replace(old, new)
        return name, {**BEFORE, "include/headrace/headrace.h": header, STORED: stored}, expected

    broken = "programs compiled with"
    return [
        case("the same", "", "", None),
        case("a new function", "HEADRACE_API int headrace_check", added, None),
        case("a field at the end", "int b;", "int b; long c;", None),
        case("a field between", "int a;", "int a; long c;", broken),
        case("a field of another type", "int b;", "float b;", broken),
        case("a struct without a size grows", "void* data;", "void* data; long more;", broken),
        case("a field in a hole", "int a;", "char a; char c;", broken),
        case("a field less", "int b;", "", broken),
        case("a constant more", "OK = 0", "OK = 0, NEW = 1", None),
        case("a constant of another value", "OK = 0", "OK = 1", broken),
        case("a function less", "HEADRACE_API int headrace_check(int a);", "", broken),
        case("an argument more", "headrace_check(int a)", "headrace_check(int a, int b)", broken),
        case("no C", "int b;", "int;?", "the headers make no stub"),
    ]


if __name__ == "__main__":
    checklib.main(__doc__, check, CASES, add_arguments, configure)
