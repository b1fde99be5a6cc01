"""Loads from shared memory that are in flight where an mbarrier is arrived at.

An arrival tells others that memory may be overwritten. ptxas lets it be issued while loads from that memory are in
flight: it orders the two as the memory model asks, by program order, but the loads queue for shared memory while a
wgmma reads its operands, and TMA does not queue behind them. So nothing may be in flight there.

The encoding of an instruction says which scoreboard a load signals (or none) and which scoreboards an instruction waits
for. Loads from shared memory and shuffles return in order: where a later one has returned, so have those before it.
ptxas relies on that, and gives many loads no scoreboard.
"""

import re

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;?\s*/\* 0x([0-9a-f]{16}) \*/")
ENCODING = re.compile(r"/\* 0x([0-9a-f]{16}) \*/")
LOAD = re.compile(r"\bLDSM?\b")
SHUFFLE = re.compile(r"\bSHFL\b")
ARRIVAL = re.compile(r"\b(?:SYNCS|ATOMS)\.ARRIVE\b")
DRAIN = re.compile(r"\bDEPBAR\.LE SB([0-5]), 0x0\b")
JUMP = re.compile(r"\b(?:BRA|JMP|CALL|WARPSYNC\.COLLECTIVE)\b.*\b0x([0-9a-f]+)")
ALWAYS = re.compile(r"^(?:BRA(?!\.DIV)|JMP|EXIT|RET|BRX|JMX|KILL)\b")
NO_SCOREBOARD = 7


class Instruction:
    """An instruction and its control bits."""

    def __init__(self, address, text, encoding):
        control = encoding >> 105
        self.address, self.text = address, text
        self.signals = control >> 5 & 7  # the scoreboard that a load's return clears
        self.waits = {b for b in range(6) if control >> 11 & 1 << b}
        if found := DRAIN.search(text):
            self.waits.add(int(found[1]))
        self.is_load = bool(LOAD.search(text)) and not text.startswith("@!PT")  # which pads, and never loads
        self.is_shuffle = bool(SHUFFLE.search(text))
        self.is_arrival = bool(ARRIVAL.search(text))

    def after(self, in_flight):
        """(scoreboard, address) of the loads in flight behind this instruction, in order; of a scoreboard the last one,
        and of those without one, which a later one stands for, the last of all. A shuffle has no address."""
        state = list(in_flight)
        for b in self.waits:
            last = max((i for i, (board, _) in enumerate(state) if board == b), default=-1)
            state = state[last + 1 :]
        if self.is_load or self.is_shuffle and state:
            address = self.address if self.is_load else None
            state = [x for x in state if x[0] != self.signals] + [(self.signals, address)]
        return tuple(state)


def instructions_of(lines):
    """Of a function, in cuobjdump's words: two lines each."""
    lines, body = iter(lines), []
    for line in lines:
        if found := INSTRUCTION.match(line):
            high = ENCODING.search(next(lines, ""))
            body.append(Instruction(int(found[1], 16), found[2], (int(high[1], 16) << 64) + int(found[3], 16)))
    return body


def next_of(body, index, i):
    """Indices of the instructions that may follow."""
    text = body[i].text
    targets = [index[int(found[1], 16)]] if (found := JUMP.search(text)) and int(found[1], 16) in index else []
    if not ALWAYS.search(text) and i + 1 < len(body):
        targets.append(i + 1)
    return targets


def loads_at_arrivals(body):
    """Texts "address: arrival, behind loads at address"; arrivals that some path reaches with loads in flight."""
    index = {instruction.address: i for i, instruction in enumerate(body)}
    seen, work, found = set(), [(0, ())] if body else [], {}
    while work:
        i, state = work.pop()
        if (i, state) in seen:
            continue
        seen.add((i, state))
        after = body[i].after(state)
        loads = {address for _, address in after if address is not None}
        if body[i].is_arrival and loads:
            found.setdefault(i, set()).update(loads)
        work += [(j, after) for j in next_of(body, index, i)]
    return [f"{body[i].address:#x}: {body[i].text}, behind loads at {' '.join(f'{a:#x}' for a in sorted(found[i]))}"
            for i in sorted(found)]
