#!/usr/bin/env python3
"""Each __device__ function of src/ is inline, constexpr, a template or a member defined in its class.

nvcc gives any other one a stub on the host, which calls exit(). The library must not be able to end the process, and
its exports show the call in a build with CUDA alone. A function that is also __host__ has no stub.
"""

import re

import check_size
import checklib

SOURCES = {".cu", ".cuh"}
DEVICE_ONLY = re.compile(r"(?=.*\b__device__\b)(?!.*\b__host__\b)", re.DOTALL)
WORDS = ("inline", "__forceinline__", "constexpr", "consteval")
INLINE = re.compile(rf"\b(?:{'|'.join(WORDS)})\b")
TEMPLATE = re.compile(r"\s*template\s*<\s*[^\s>]")  # a full specialisation, template <>, is none
CLASS = re.compile(r"(?:class|struct|union)\b")


def has_stub(header, around):
    if not DEVICE_ONLY.match(header) or TEMPLATE.match(header):
        return False
    is_in_class = CLASS.match(check_size.without_template(around))
    return not is_in_class and not INLINE.search(header)


def check(root):
    findings = []
    for path in checklib.tracked_files(root):
        if path.parts[0] != "src" or path.suffix not in SOURCES:
            continue
        for line, _, _, header, around in check_size.bodies(checklib.read_text(root / path) or ""):
            if has_stub(header, around):
                name = check_size.name_of(header)
                findings.append(f"{path}:{line}: {name} is a __device__ function with a host stub: write inline")
    return findings


BODY = " f(int a) { return a; }\n"
CASES = [
    ("plain", {"src/a.cu": "__device__ int" + BODY}, "src/a.cu:1: f is a __device__ function with a host stub"),
    ("a header", {"src/b/a.cuh": "#pragma once\n__device__ int" + BODY}, "src/b/a.cuh:2: f"),
    ("in namespaces", {"src/a.cu": "namespace a {\nnamespace {\n__device__ int" + BODY + "}\n}\n"}, "src/a.cu:3: f"),
    ("static in a namespace", {"src/a.cu": "static __device__ int" + BODY}, "src/a.cu:1: f"),
    ("noinline", {"src/a.cu": "__device__ __noinline__ int" + BODY}, "src/a.cu:1: f"),
    ("a table", {"src/a.cu": "__device__ Pair f() { return {1, 2}; }\n"}, "src/a.cu:1: f"),
    ("a full specialisation", {"src/a.cu": "template <>\n__device__ int f<1>() {}\n"}, "src/a.cu:1: "),
    ("a member behind its class", {"src/a.cu": "struct S {\nint f();\n};\n__device__ int S::f() {}\n"}, "4: S::f"),
    ("behind a class", {"src/a.cu": "struct S {\nint g() {}\n};\n__device__ int" + BODY}, "src/a.cu:4: f"),
    ("behind a struct's data", {"src/a.cu": "const struct S s = {1};\n__device__ int" + BODY}, "src/a.cu:2: f"),
    *((word, {"src/a.cuh": f"__device__ {word} int" + BODY}, None) for word in WORDS),
    ("inline first", {"src/a.cuh": "inline __device__ int" + BODY}, None),
    ("a template", {"src/a.cuh": "template <int N>\n__device__ int" + BODY}, None),
    ("a template of templates", {"src/a.cuh": "template <\n template <int> class T>\n__device__ int" + BODY}, None),
    ("a member", {"src/a.cuh": "class S final : B {\n public:\n __device__ int" + BODY + "};\n"}, None),
    ("a static member", {"src/a.cuh": "struct S {\n __device__ static int" + BODY + "};\n"}, None),
    ("a constructor", {"src/a.cuh": "struct S {\n __device__ S(int a) : a_{a} {}\n};\n"}, None),
    ("a member of a specialisation", {"src/a.cuh": "template <>\nstruct S<1> {\n__device__ int" + BODY + "};\n"}, None),
    ("host and device", {"src/a.cuh": "__host__ __device__ int" + BODY}, None),
    ("a kernel", {"src/a.cu": "__global__ void f() {}\n"}, None),
    ("a declaration", {"src/a.cu": "__device__ int f(int a);\n"}, None),
    ("a variable", {"src/a.cu": "__device__ unsigned word;\n__device__ int list[] = {1, 2};\n"}, None),
    ("a lambda", {"src/a.cu": "void g() {\n run([] __device__(int a) { return a; });\n}\n"}, None),
    ("a comment", {"src/a.cu": "// __device__ int f() {}\nvoid g() {}\n"}, None),
    ("a program of the tests", {"tests/a.cu": "__device__ int" + BODY}, None),
    ("another file", {"src/a.cc": "__device__ int" + BODY}, None),
]

if __name__ == "__main__":
    checklib.main(__doc__, check, CASES)
