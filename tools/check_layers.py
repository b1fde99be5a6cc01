#!/usr/bin/env python3
"""Each file under src/ includes its own layer or a lower one; programs see the public headers and their own folder.

A unit test (*_test.cc) also sees tests/.
"""

import posixpath
import re

import checklib

# Lowest first. Folders of src/backends/ are siblings that never see each other.
LAYERS = ["base", "core", "weights", "text", "backends", "attention", "ops", "kv_cache", "model", "engine", "capi"]
# What programs may include beside headrace/ and their own folder: bench/probes is a library that measures the machine.
PROGRAM_FOLDERS = {"cli": ["probes/"], "examples": []}
SOURCES = {".h", ".hpp", ".cc", ".c", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def check_source(path, included):
    """What is wrong with a file of src/ (path is relative to src/) that includes a path."""
    if path.parts[0] not in LAYERS:
        return f"'{path.parts[0]}' is no layer of src/: {', '.join(LAYERS)}"
    target = included.split("/")
    if target[0] == "headrace":
        return None
    if target[0] not in LAYERS or len(target) < 2:
        return f'includes "{included}": write the path from src/, or <...> for a header of another project'
    if LAYERS.index(target[0]) > LAYERS.index(path.parts[0]):
        return f'{path.parts[0]} includes "{included}" of the higher layer {target[0]}'
    siblings = path.parts[0] == target[0] == "backends" and len(path.parts) > 2 and len(target) > 2
    if siblings and path.parts[1] != target[1]:
        return f'backends/{path.parts[1]} includes "{included}" of its sibling backends/{target[1]}'
    return None


def check_program(root, path, quoted, included):
    folder = path.parts[0]
    if included.startswith("headrace/"):
        return None if (root / "include" / included).is_file() else f'includes "{included}", no public header'
    if not quoted:
        # A header of src/ in angle brackets is a header of src/ still.
        return f"includes <{included}> of src/" if (root / "src" / included).is_file() else None
    if any(included.startswith(prefix) for prefix in PROGRAM_FOLDERS[folder]):
        return None
    for base in (path.parent.as_posix(), folder):
        found = posixpath.normpath(posixpath.join(base, included))
        if found.startswith(folder + "/") and (root / found).is_file():
            return None
    return f'includes "{included}": only headrace/ and files of {folder}/ are its to see'


def check(root):
    findings = []
    for path in checklib.tracked_files(root):
        if path.suffix not in SOURCES or path.parts[0] not in {"src", *PROGRAM_FOLDERS}:
            continue
        for number, line in enumerate((checklib.read_text(root / path) or "").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quoted, included = match.group(1) == '"', match.group(2)
            wrong = None
            if path.stem.endswith("_test") and included.startswith("tests/"):
                continue
            if path.parts[0] != "src":
                wrong = check_program(root, path, quoted, included)
            elif quoted or (root / "src" / included).is_file():
                wrong = check_source(path.relative_to("src"), included)
            if wrong:
                findings.append(f"{path}:{number}: {wrong}")
    return findings


CASES = [
    ("lower layer", {"src/attention/a.cc": '#include "core/b.h"\n', "src/core/b.h": ""}, None),
    ("public header", {"src/core/a.cc": '#include "headrace/headrace.h"\n#include <vector>\n'}, None),
    ("higher layer", {"src/core/a.h": '#include "attention/b.h"\n'}, "higher layer attention"),
    ("base sees core", {"src/base/a.h": '  #  include "core/b.h"\n'}, "higher layer core"),
    ("siblings", {"src/backends/cuda/a.cu": '#include "backends/cpu/b.h"\n'}, "sibling backends/cpu"),
    ("one backend", {"src/backends/cpu/attention/flash/a.cc": '#include "backends/cpu/simd/b.h"\n'}, None),
    ("angle brackets", {"src/core/a.h": "#include <capi/common.h>\n", "src/capi/common.h": ""}, "higher layer capi"),
    ("relative path", {"src/core/a.h": '#include "../core/b.h"\n'}, "write the path from src/"),
    ("no path", {"src/core/a.h": '#include "b.h"\n'}, "write the path from src/"),
    ("test, tests/", {"src/core/a_test.cc": '#include "tests/b.h"\n'}, None),
    ("no test, tests/", {"src/core/a.cc": '#include "tests/b.h"\n'}, "write the path from src/"),
    ("test, higher layer", {"src/core/a_test.cc": '#include "capi/b.h"\n'}, "higher layer capi"),
    ("unknown layer", {"src/misc/a.h": '#include "core/b.h"\n'}, "no layer of src/"),
    ("program, own file", {"cli/a.cc": '#include "b.h"\n#include <CLI/CLI.hpp>\n', "cli/b.h": ""}, None),
    ("program, src", {"cli/a.cc": '#include "core/b.h"\n', "src/core/b.h": ""}, "only headrace/"),
    ("program, src by <>", {"cli/a.cc": "#include <core/b.h>\n", "src/core/b.h": ""}, "of src/"),
    ("program, way out", {"cli/a.cc": '#include "../src/core/b.h"\n', "src/core/b.h": ""}, "only headrace/"),
    ("example, cli", {"examples/a.cc": '#include "cli/b.h"\n', "cli/b.h": ""}, "only headrace/"),
    ("program, no public header", {"cli/a.cc": '#include "headrace/b.hpp"\n'}, "no public header"),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
