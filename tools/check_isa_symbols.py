#!/usr/bin/env python3
"""check_isa_symbols.py NM OBJDUMP OBJECT...: code that other files may be given needs no instruction set of this file.

A file of kernels is compiled for an instruction set. An inline function or a template in it whose name says nothing of
that set is a weak symbol: the linker keeps one copy for all files, and a CPU without the set must be able to run it.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ISA_NAME = re.compile(r"\d(?:avx2|avx512\w*)")  # in a mangled name: a namespace or the argument of a template
ISA_FILE = re.compile(r"_(?:avx2|avx512\w*)\.cc\.o$")
VEX = re.compile(r"^\s*[0-9a-f]+:\s+(v[a-z0-9]+)\s", re.MULTILINE)


def shared_symbols(nm, path):
    """Weak functions whose names hold no instruction set."""
    lines = subprocess.run([nm, "--defined-only", path], check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = (line.split() for line in lines)
    return [name for _, kind, name in symbols if kind in "Ww" and not ISA_NAME.search(name)]


def vector_instructions(objdump, path, symbol):
    command = [objdump, "-d", "--no-show-raw-insn", f"--disassemble={symbol}", path]
    return sorted(set(VEX.findall(subprocess.run(command, check=True, capture_output=True, text=True).stdout)))


def check(nm, objdump, paths):
    findings = []
    files = [path for path in paths if ISA_FILE.search(path)]
    for path in files:
        for symbol in shared_symbols(nm, path):
            found = vector_instructions(objdump, path, symbol)
            if found:
                where, what = pathlib.Path(path).name, ", ".join(found[:4])
                findings.append(f"{where}: {symbol} has {what}: give it the Isa or Vec as a template parameter, or a "
                                "place in the namespace of the instruction set")
    for finding in findings:
        print(finding)
    print(f"check_isa_symbols.py: {len(files)} files of kernels, {len(findings)} findings")
    return 1 if findings or not files else 0


ASSEMBLY = """.text
.weak {name}
.type {name}, @function
{name}: {instruction}
 ret
.size {name}, .-{name}
"""


def self_test(compiler, nm, objdump):
    """A weak function with a vector instruction, one without, one of the set, and a file of another name."""
    cases = (("_Z5sharedv", "vaddps %ymm0, %ymm0, %ymm0", "k_avx2.cc.o", 1),
             ("_Z5sharedv", "addps %xmm0, %xmm0", "k_avx2.cc.o", 0),
             ("_Z3dotIN4cpu4avx23VecEEvv", "vaddps %ymm0, %ymm0, %ymm0", "k_avx2.cc.o", 0),
             ("_Z5sharedv", "vaddps %ymm0, %ymm0, %ymm0", "k_scalar.cc.o", 1))  # no file of kernels at all
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "case.s"
        for name, instruction, file, expected in cases:
            source.write_text(ASSEMBLY.format(name=name, instruction=instruction))
            target = str(pathlib.Path(folder) / file)
            subprocess.run([compiler, "-c", str(source), "-o", target], check=True)
            if check(nm, objdump, [target]) != expected:
                wrong.append((name, instruction, file))
    print(f"check_isa_symbols.py: self-test, {len(cases)} cases: {len(wrong)} wrong {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[4:] == ["--self-test"]:
        sys.exit(self_test(*sys.argv[1:4]))
    sys.exit(check(sys.argv[1], sys.argv[2], sys.argv[3:]))
