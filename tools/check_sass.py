#!/usr/bin/env python3
"""Fails where the loop of a kernel around its matrix products touches local memory much: registers were spilled there,
and every step would wait for them. And where a loop that waits for one product while another runs computes its
exponentials behind the wait for both: nvcc moves them there unless a branch wants their sum. And where a kernel writes
nothing on any architecture: nvcc compiles one to nothing, without a warning, that refers to a constant of the host;
a branch that does (std::max() takes the address of a constexpr variable) becomes a trap, which is looked for, too.
And where an mbarrier is arrived at while loads from shared memory are in flight: the arrival may release the memory
that they read (sass_loads.py).

usage: check_sass.py OBJECT...    or    check_sass.py --self-test

Needs cuobjdump: on PATH, beside nvcc in /usr/local/cuda/bin, or where CUOBJDUMP says. A loop is what lies between a
backward branch and its target, which every way to the branch passes (a branch that is always taken may also lead back
from where a wait goes on); of nested loops the innermost with matrix products counts.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

from sass_loads import instructions_of, loads_at_arrivals, next_of

FUNCTION = re.compile(r"Function : (\S+)")
PRODUCT = re.compile(r"\b(?:HGMMA|HMMA|QGMMA|IMMA)\b")
LOCAL = re.compile(r"\b(?:LDL|STL)\b")
WAIT = re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
TRAP = re.compile(r"\bBPT\.TRAP\b")
STORE = re.compile(r"\b(?:ST|STG|RED|REDG|ATOM|ATOMG|UTMASTG|UTMAREDG|UBLKCP|UBLKRED)\b")
EXPONENTIAL = re.compile(r"\bMUFU\.EX2\b")
# Loops of thousands of instructions hold the ways of many features; plain ones have 800. Where every product is waited
# for before anything else is done, as for rows that are computed again, a spill is not what takes time.
FREE_SHARE, FREE_SHARE_IN_TURN = 1 / 200, 1 / 100
# Loops of the portable forward that spill more when compiled for sm_80, and how much. Nobody has timed them on such a
# GPU.
KNOWN_SPILLS = (
    (re.compile(r"sm803fwd7forwardI(?:13__nv_bfloat16|6__half)Lb0ELb[01]ENS2_6TileOfILb0ELi128ELb0ELb0E"), 30),
    (re.compile(r"sm803fwd7forwardIfLb1ELb1ENS2_6TileOfILb1ELi64ELb1ELb0E"), 28),
)
LATCH = re.compile(r"^(@.*)?\bBRA\b.*?0x([0-9a-f]+)")


def functions_of(text):
    """(name, its lines)"""
    name, lines = None, []
    for line in text.splitlines():
        if found := FUNCTION.search(line):
            if lines:
                yield name, lines
            name, lines = found[1], []
        elif name:
            lines.append(line)
    if lines:
        yield name, lines


def passes(body, index, header, last):
    """Whether every way from the entry to `last` passes `header`."""
    seen, work = {header}, [0] if header != 0 else []
    while work:
        i = work.pop()
        if i == last:
            return False
        if i not in seen:
            seen.add(i)
            work += next_of(body, index, i)
    return True


def product_loops(body):
    """(first, last) of the innermost loops with matrix products, as indices."""
    index = {x.address: i for i, x in enumerate(body)}
    loops = []
    for last, x in enumerate(body):
        found = LATCH.search(x.text)
        first = index.get(int(found[2], 16)) if found else None
        if first is None or first > last or not any(PRODUCT.search(y.text) for y in body[first : last + 1]):
            continue
        if found[1] or passes(body, index, first, last):
            loops.append((first, last))
    return [
        (first, last)
        for first, last in loops
        if not any((f, l) != (first, last) and first <= f and l <= last for f, l in loops)
    ]


def late_exponentials(loop):
    """(under a product, behind the wait for it): exponentials between the wait for the older of two products and that
    for both, and from there to the next product."""
    counts = {"early": 0, "late": 0}
    now = None
    for text in loop:
        if PRODUCT.search(text):
            now = None
        elif found := WAIT.search(text):
            now = "early" if found[1] == "1" else "late" if now == "early" else None
        elif now and EXPONENTIAL.search(text):
            counts[now] += 1
    return counts["early"], counts["late"]


def judge(text):
    """(number of loops, complaints)"""
    count, complaints, writes = 0, [], {}
    for name, lines in functions_of(text):
        body = instructions_of(lines)
        complaints += [f"{name}: an arrival with loads from shared memory in flight, {text}"
                       for text in loads_at_arrivals(body)]
        if any(TRAP.search(x.text) for x in body):
            complaints.append(f"{name}: a branch traps; does it take the address of a constant of the host?")
        writes[name] = writes.get(name, False) or any(STORE.search(x.text) for x in body)
        for first, last in product_loops(body):
            count += 1
            loop = [x.text for x in body[first : last + 1]]
            waits = {found[1] for t in loop if (found := WAIT.search(t))}
            spills = [t for t in loop if LOCAL.search(t)]
            free = round((FREE_SHARE_IN_TURN if waits == {"0"} else FREE_SHARE) * len(loop))
            if len(spills) > max([free, *(most for known, most in KNOWN_SPILLS if known.search(name))]):
                complaints.append(f"{name}: {len(spills)} accesses of local memory in {len(loop)} instructions")
            early, late = late_exponentials(loop)
            if late > early:
                complaints.append(f"{name}: {late} exponentials behind the wait for the product that they should run "
                                  f"under, {early} before")
    complaints += [f"{name}: stores nothing" for name, does in writes.items() if not does]
    return count, complaints


def find_cuobjdump():
    named = os.environ.get("CUOBJDUMP")
    return named or shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")


def judge_object(tool, path):
    done = subprocess.run([tool, "-sass", path], capture_output=True, text=True)
    if done.returncode != 0:
        return 0, [f"{path}: {done.stderr.strip()}"]
    return judge(done.stdout)


def check(paths):
    tool = find_cuobjdump()
    if tool is None:
        print("check_sass.py: no cuobjdump on PATH or in /usr/local/cuda/bin; set CUOBJDUMP, or run ./dev setup --cuda")
        return 1
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda path: judge_object(tool, path), paths))
    complaints = [text for _, texts in results for text in texts]
    for text in complaints:
        print(f"check_sass.py: {text}")
    loops = sum(count for count, _ in results)
    print(f"check_sass.py: {len(paths)} objects, {loops} loops with matrix products, {len(complaints)} complaints")
    return 1 if complaints or loops == 0 else 0


def self_test():
    def kernel(*texts, end="STG.E desc[UR4][R2.64], R0"):
        return encoded(*((text, 7, "") for text in texts), end=end)

    outer = ("STL [R1], R0", "HMMA.16816.F32 R4", "@P0 BRA 0x0010", "@P1 BRA 0x0000")
    inner = ("HGMMA.64x128x16.F32.BF16 R24", "LDL R1, [R2]", "@P0 BRA 0x0010")

    def overlap(early, late):
        wait, exponential = "WARPGROUP.DEPBAR.LE gsb0, {}", "MUFU.EX2 R2, R2"
        return ("HGMMA.64x128x16.F32 R24", wait.format("0x1"), *early * [exponential], wait.format("0x0"),
                *late * [exponential], "@P0 BRA 0x0000")

    def encoded(*instructions, end="STG.E desc[UR4][R2.64], R0"):
        """(instruction, scoreboard that it signals, scoreboards that it waits for)"""
        lines = ["\t\tFunction : k"]
        for i, (text, signals, waits) in enumerate((*instructions, (end, 7, ""))):
            control = (signals << 5 | 7 << 8 | sum(1 << int(b) for b in waits) << 11) << 41
            lines += [f"        /*{16 * i:04x}*/                   {text} ;  /* 0x{0:016x} */",
                      f"                                        /* 0x{control:016x} */"]
        return "\n".join(lines)

    arrival = "SYNCS.ARRIVE.TRANS64 RZ, [UR8], RZ"
    load, late = ("LDSM.16.M88.4 R4, [R2]", 1, ""), ("LDS R8, [R3]", 2, "")
    silent, shuffle = ("LDS.128 R12, [UR8+0x10]", 7, ""), ("SHFL.BFLY PT, R1, R2, 0x1, 0x1f", 3, "")
    jump = ("@P0 BRA 0x0030", 7, "")
    cases = [
        ("a load in flight", encoded(load, (arrival, 7, "")), (0, 1)),
        ("a load that returned", encoded(load, ("MOV R0, R4", 7, "1"), (arrival, 7, "")), (0, 0)),
        ("the arrival waits", encoded(load, (arrival, 7, "1")), (0, 0)),
        ("another scoreboard", encoded(load, (arrival, 7, "2")), (0, 1)),
        ("a drained scoreboard", encoded(load, ("DEPBAR.LE SB1, 0x0", 7, ""), (arrival, 7, "")), (0, 0)),
        ("a later load returned", encoded(load, silent, late, (arrival, 7, "2")), (0, 0)),
        ("an earlier load returned", encoded(load, late, (arrival, 7, "1")), (0, 1)),
        ("a load without a scoreboard", encoded(silent, (arrival, 7, "012345")), (0, 1)),
        ("a later shuffle returned", encoded(silent, shuffle, (arrival, 7, "3")), (0, 0)),
        ("a shuffle in flight", encoded(shuffle, (arrival, 7, "")), (0, 0)),
        ("waited for on one path", encoded(load, jump, ("MOV R0, R4", 7, "1"), (arrival, 7, "")), (0, 1)),
        ("a loop's last load", encoded((arrival, 7, ""), load, ("@P0 BRA 0x0000", 7, "")), (0, 1)),
        ("padding that loads nothing", encoded(("@!PT LDS RZ, [RZ]", 7, ""), (arrival, 7, "")), (0, 0)),
        ("an arrival of sm_80", encoded(load, ("ATOMS.ARRIVE.64 RZ, [R1]", 7, "")), (0, 1)),
        ("no spill", kernel("MOV R0, R1", "HGMMA.64x128x16.F32 R24", "@P0 BRA 0x0010"), (1, 0)),
        ("spill in the loop", kernel("MOV R0, R1", *inner), (1, 1)),
        ("spill around the loop", kernel(*outer), (1, 0)),
        ("exponentials under the product", kernel(*overlap(2, 1)), (1, 0)),
        ("exponentials behind the wait", kernel(*overlap(1, 2)), (1, 1)),
        ("a loop that tests first", kernel("@P0 BRA 0x0040", "HMMA.16816.F32 R4", "STL [R1], R0", "BRA 0x0000", "EXIT"),
         (1, 1)),
        ("a wait that goes on elsewhere", kernel("HMMA.16816.F32 R4", "@P0 BRA 0x0040", "HMMA.16816.F32 R8", "EXIT",
                                                 "STL [R1], R0", "@P1 BRA 0x0040", "BRA 0x0020"), (0, 0)),
        ("a loop without products", kernel("LDL R1, [R2]", "FADD R0, R1, R2", "@P0 BRA 0x0000"), (0, 0)),
        ("a branch that traps", kernel("@P0 BRA 0x0030", "MOV R0, R1", "EXIT", "BPT.TRAP 0x1"), (0, 1)),
        ("stores nothing", kernel(end="EXIT"), (0, 1)),
        ("stores on one architecture", "\n".join([kernel(end="EXIT"), kernel()]), (0, 0)),
    ]
    wrong = [name for name, text, (count, bad) in cases if (judge(text)[0], len(judge(text)[1])) != (count, bad)]
    print(f"check_sass.py: self-test, {len(cases)} cases: {len(wrong)} wrong {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(self_test() if sys.argv[1:] == ["--self-test"] else check(sys.argv[1:]))
