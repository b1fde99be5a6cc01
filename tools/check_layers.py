#!/usr/bin/env python3
"""Each file under src/ includes its own layer or a lower one; programs see the public headers and their own folder.

The backends never see each other; model and engine never see a backend, not through a header of another layer either.
A unit test (*_test.cc) also sees tests/.
"""

import posixpath
import re

import checklib

# Lowest first. Folders of src/backends/ are siblings that never see each other.
LAYERS = [
    "base", "core", "runtime", "weights", "text", "backends", "probes", "attention", "ops", "kv_cache", "executor",
    "model", "engine", "capi",
]  # fmt: skip
# These name no device: no file of them includes backends/, nor a header that does.
DEVICE_NEUTRAL = ["model", "engine"]
# What programs may include beside headrace/ and their own folder: probes/ is a library that measures a CPU,
# server.h is all that cli/ sees of server/.
PROGRAM_FOLDERS = {"cli": ["probes/", "server.h"], "examples": [], "server": []}
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


def way_to_backends(includes, start):
    """The headers from a file of src/ to one of backends/, both included; empty: there is none."""
    ways = [[start]]
    seen = {start}
    for way in ways:
        if way[-1].startswith("backends/"):
            return way
        for _, included in includes.get(way[-1], []):
            if included not in seen:
                seen.add(included)
                ways.append([*way, included])
    return []


def check_neutral(includes):
    findings = []
    for path, lines in includes.items():
        if path.split("/")[0] not in DEVICE_NEUTRAL:
            continue
        for number, included in lines:
            if way := way_to_backends(includes, included):
                through = " through " + ", ".join(way[:-1]) if len(way) > 1 else ""
                findings.append(f"src/{path}:{number}: includes {way[-1]}{through}: model and engine name no device")
    return findings


def check(root):
    findings = []
    includes = {}  # of files of src/: [(line, included file)]
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
                includes.setdefault(path.relative_to("src").as_posix(), []).append((number, included))
                wrong = check_source(path.relative_to("src"), included)
            if wrong:
                findings.append(f"{path}:{number}: {wrong}")
    return findings + check_neutral(includes)


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
    ("model, executor", {"src/model/a.cc": '#include "executor/b.h"\n', "src/executor/b.h": ""}, None),
    ("model, backend", {"src/model/a.cc": '#include "backends/cpu/b.h"\n'}, "model and engine name no device"),
    ("engine, backend", {"src/engine/a_test.cc": '#include "backends/cpu/b.h"\n'}, "model and engine name no device"),
    (
        "model, backend by a header",
        {
            "src/model/a.h": '#include "executor/b.h"\n',
            "src/executor/b.h": '#include "ops/c.h"\n#include "executor/b.h"\n',
            "src/ops/c.h": '#include "backends/cpu/d.h"\n',
        },
        "src/model/a.h:1: includes backends/cpu/d.h through executor/b.h, ops/c.h",
    ),
    ("executor, backend", {"src/executor/a.cc": '#include "backends/cpu/b.h"\n'}, None),
    ("text, backend", {"src/text/a.cc": '#include "backends/cpu/b.h"\n'}, "higher layer backends"),
    ("executor, model", {"src/executor/a.cc": '#include "model/b.h"\n'}, "higher layer model"),
    ("unknown layer", {"src/misc/a.h": '#include "core/b.h"\n'}, "no layer of src/"),
    ("program, own file", {"cli/a.cc": '#include "b.h"\n#include <CLI/CLI.hpp>\n', "cli/b.h": ""}, None),
    ("program, src", {"cli/a.cc": '#include "core/b.h"\n', "src/core/b.h": ""}, "only headrace/"),
    ("program, src by <>", {"cli/a.cc": "#include <core/b.h>\n", "src/core/b.h": ""}, "of src/"),
    ("program, way out", {"cli/a.cc": '#include "../src/core/b.h"\n', "src/core/b.h": ""}, "only headrace/"),
    ("program, server", {"cli/a.cc": '#include "server.h"\n', "server/server.h": ""}, None),
    ("server, src", {"server/a.cc": '#include "core/b.h"\n', "src/core/b.h": ""}, "only headrace/"),
    ("server, cli", {"server/a.cc": '#include "b.h"\n', "cli/b.h": ""}, "files of server/"),
    ("example, cli", {"examples/a.cc": '#include "cli/b.h"\n', "cli/b.h": ""}, "only headrace/"),
    ("program, no public header", {"cli/a.cc": '#include "headrace/b.hpp"\n'}, "no public header"),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
