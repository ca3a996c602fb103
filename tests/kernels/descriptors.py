"""Follows the uniform registers of a compiled program, to find products whose descriptor is wrong on some path.

A product of tensor cores (HGMMA) reads shared memory by a descriptor, whose lower half is an address of 14 bits. ptxas
12.8 has been seen to build it from a register that holds an address on one path into a loop and a parameter on another:
memory out of bounds, which neither the interpreter nor the registers of a program show.
"""

from __future__ import annotations

import re

INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(@!?\w+)?\s*(\S+)\s*(.*?)\s*;")
LABEL = re.compile(r"\s*(\.L_\w+):")
PREDICATE = re.compile(r"!?U?P(\d|T)$")
REGISTERS = 64

ADDRESS, CONSTANT, OTHER, UNKNOWN = 1, 2, 4, 8
"""What a register may hold: an address with or without a constant added, a constant, anything else; or a value from the
registers of threads, which are not followed. Of several each is possible."""
BITS, ALL = 4, 15
"""A state is a whole number with so many bits for each register, so that two states are joined at once."""


def misaddressed(disassembly: str) -> dict[str, str]:
    """Returns the products whose descriptor may hold other than an address, by where they are.

    Args:
        disassembly: of one program, as ``nvdisasm -c`` prints it.
    """
    code: list[tuple[str, bool, str, str]] = []
    labels: dict[str, int] = {}
    for line in disassembly.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(code)
        elif found := INSTRUCTION.match(line):
            code.append((found[1], found[2] is not None, found[3], found[4]))
    before = {0: sum(OTHER << BITS * register for register in range(REGISTERS))}
    waiting, wrong = [0], dict[str, str]()
    while waiting:
        at = waiting.pop()
        where, predicated, name, rest = code[at]
        state = before[at]
        if name.startswith("HGMMA") and any(_held(state, one) & OTHER for one in _descriptors(rest)):
            wrong[where] = f"{name} {rest}"
        after = _after(state, name, rest, predicated) if rest.startswith("UR") else state
        target = re.search(r"\.L_\w+", rest) if name.startswith("BRA") else None
        ends = ((name.startswith("BRA") and "P" not in rest.split("`")[0]) or name == "EXIT") and not predicated
        follow = [] if ends or at + 1 == len(code) else [at + 1]
        follow += [] if target is None else [labels[target[0]]]
        for one in follow:
            merged = before.get(one, 0) | after
            if merged != before.get(one):
                before[one] = merged
                waiting.append(one)
    return wrong


def _descriptors(operands: str) -> list[int]:
    """The registers with the addresses of a product's factors: of both, or of the second if the first has registers."""
    _, first, *_ = (one.strip() for one in operands.split(","))
    found = re.search(r"gdesc\[UR(\d+)\]", operands)
    assert found is not None, operands
    register = int(found[1])
    return [register, register + 2] if first.startswith("gdesc") else [register + 2]


def _held(state: int, register: int) -> int:
    """What a register may hold."""
    return state >> BITS * register & ALL


def _after(state: int, name: str, rest: str, predicated: bool) -> int:
    """What registers may hold after an instruction."""
    into = re.match(r"UR(\d+)\b", rest)
    if into is None:
        return state
    operands = [one.strip() for one in rest.split(",")[1:]]
    operands = [one for one in operands if not PREDICATE.match(one)]
    pair = ".64" in name or ".WIDE" in name
    after = state
    for half in range(2 if pair else 1):
        register, value = int(into[1]) + half, _value(state, name, operands, half)
        lost = 0 if predicated else ALL << BITS * register
        after = after & ~lost | value << BITS * register
    return after


def _value(state: int, name: str, operands: list[str], half: int) -> int:
    kind = name.split(".")[0]
    if kind == "USGXT" or (kind == "ULOP3" and "0x3fff" in operands):
        return ADDRESS
    if kind == "R2UR":
        return UNKNOWN
    if kind not in ("UMOV", "UIADD3", "ULOP3", "USEL"):
        return OTHER
    held = 0
    for one in operands:
        if found := re.match(r"[-~]?UR(\d+)", one):
            held |= _held(state, int(found[1]) + half)
    return held & ~CONSTANT or CONSTANT
