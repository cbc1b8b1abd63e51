"""Computes, before a pickle is read, how much work hashing its keys takes: CPython hashes a tuple recursively, without a cache.

Forty tuples that each hold the one before twice take 300 bytes, and a trillion steps to hash. Nothing can interrupt that, because
the work happens in C. So this module follows the stack and the memo of the pickle, and keeps only the *weight* of each value: how
many values its hash visits. Opcodes: Lib/pickletools.py of CPython; `unpickle` refuses all others beforehand.
"""

from __future__ import annotations

MAX_KEYS = 1 << 13
"""Most tuples, and integers beyond 64 bits, as keys or in sets: if all share one hash, CPython compares each pair, 34 million
in all."""
MAX_WEIGHT = 1 << 17
"""Most values that the hashes of these visit together; each comparison of two may visit as many again."""
MAX_DEPTH = 100
"""Deepest nesting of tuples: hashing recurses in C, where Python's recursion limit does not hold."""
_DEPTH = 20
"""A value that is no tuple is 0; a tuple is its weight and, from this bit on, the depth of its nesting."""
_WEIGHT = (1 << _DEPTH) - 1
_FLAT = tuple(1 << _DEPTH | n + 1 for n in range(4))
"""The values of tuples with up to three elements that are no tuples."""
_LENGTHS = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x43: 1, 0x42: 4, 0x8E: 8, 0x8A: 1, 0x8B: 4, 0x55: 1, 0x54: 4, 0x96: 8}
"""Opcodes that push a text, bytes, a bytearray or an integer → bytes of the length that follows."""
_FIXED = {0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8, 0x4E: 0, 0x88: 0, 0x89: 0, 0x5D: 0, 0x7D: 0, 0x8F: 0}
"""Opcodes that push another value → bytes that follow."""


class CostlyKeys(Exception):
    """Hashing the keys takes too long. The message is the end of a sentence."""


def check_hash_cost(raw: bytes) -> None:
    """Raise CostlyKeys if hashing the keys of a pickle takes too long; leave a broken pickle to the unpickler."""
    try:
        _follow(raw)
    except (IndexError, KeyError):
        return  # the unpickler stops there too


class _Keys:
    """Counts the hashed keys."""

    def __init__(self) -> None:
        self.number = self.weight = 0

    def add(self, values: list[int]) -> None:
        """Count further keys. Raises CostlyKeys if there are too many."""
        self.number += sum(map(bool, values))
        self.weight += sum(value & _WEIGHT for value in values)
        if self.number > MAX_KEYS or self.weight > MAX_WEIGHT:
            raise CostlyKeys("its keys take too long to be compared")


def _joined(parts: list[int]) -> int:
    """Return the value of a tuple of these. Raises CostlyKeys where it is nested too deep."""
    deep = max(parts, default=0) >> _DEPTH
    if deep >= MAX_DEPTH:
        raise CostlyKeys("its tuples are nested too deep")
    weight = 1 + len(parts) + sum(value & _WEIGHT for value in parts)
    return deep + 1 << _DEPTH | min(weight, MAX_WEIGHT + 1)


def _follow(raw: bytes) -> None:
    """Follow the stack and the memo. One branch per opcode, frequent ones first, because calls would take twice the time."""
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    keys = _Keys()
    push, lengths, fixed = stack.append, _LENGTHS, _FIXED
    at, end = 0, len(raw)
    while at < end:
        op = raw[at]
        at += 1
        if op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op in fixed:
            at += fixed[op]
            push(0)
        elif op == 0x68:  # BINGET
            push(memo[raw[at]])
            at += 1
        elif op == 0x6A:  # LONG_BINGET
            push(memo[int.from_bytes(raw[at : at + 4], "little")])
            at += 4
        elif op in lengths:
            width = lengths[op]
            length = int.from_bytes(raw[at : at + width], "little")
            at += width + length
            # integers that differ by a multiple of 2^61 - 1 share a hash, as tuples can, so count them as keys too
            push(_FLAT[0] if length > 8 and (op == 0x8A or op == 0x8B) else 0)
        elif 0x85 <= op <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
            first = len(stack) + 0x84 - op
            if first < 0:
                return
            parts = stack[first:]
            stack[first:] = [_joined(parts) if any(parts) else _FLAT[len(parts)]]
        elif op == 0x52 or op == 0x81:  # REDUCE, NEWOBJ: what is called may return what it was given
            given = stack.pop()
            stack[-1] = 0 if given & _WEIGHT == 1 else given
        elif op == 0x28:  # MARK
            marks.append(len(stack))
        elif op == 0x71:  # BINPUT
            memo[raw[at]] = stack[-1]
            at += 1
        elif op == 0x72:  # LONG_BINPUT
            memo[int.from_bytes(raw[at : at + 4], "little")] = stack[-1]
            at += 4
        elif op == 0x74:  # TUPLE
            first = marks.pop()
            stack[first:] = [_joined(stack[first:])]
        elif op == 0x75:  # SETITEMS
            first = marks.pop()
            named = stack[first::2]
            if any(named):
                keys.add(named)
            del stack[first:]
        elif op == 0x73:  # SETITEM
            if stack[-2]:
                keys.add(stack[-2:-1])
            del stack[-2:]
        elif op == 0x62 or op == 0x61:  # BUILD, APPEND
            stack.pop()
        elif op == 0x29:  # EMPTY_TUPLE
            push(_FLAT[0])
        elif op == 0x65:  # APPENDS
            del stack[marks.pop() :]
        elif op == 0x51:  # BINPERSID
            stack[-1] = 0
        elif op == 0x90 or op == 0x91:  # ADDITEMS, FROZENSET
            first = marks.pop()
            parts = stack[first:]
            keys.add(parts)
            stack[first:] = [_joined(parts)] if op == 0x91 else []
        elif op == 0x93:  # STACK_GLOBAL
            stack.pop()
            stack[-1] = 0
        elif op == 0x92:  # NEWOBJ_EX
            del stack[-2:]
            stack[-1] = 0
        elif op == 0x63:  # GLOBAL
            at = raw.find(b"\n", raw.find(b"\n", at) + 1) + 1
            push(0)
        elif op == 0x80:  # PROTO
            at += 1
        elif op == 0x95:  # FRAME
            at += 8
        else:  # STOP
            return
