"""Reads AReaL's strings of backends and parallel sizes: ``sglang:d4t2+megatron:(attn:d4p4t2|ffn:d2p4e4)``.

The grammar is that of ``areal/api/alloc_mode.py`` of inclusionAI/AReaL at 4aef98d8d, with the dots of 2025
(``sglang.d4p1t1+d4p1t1``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ENGINES, TRAINERS = ("sglang", "vllm"), ("fsdp", "megatron", "archon")
WITHOUT_SIZES = ("eval", "cpu")
"""Parts of 2025 that took no GPUs of the job."""
SIZES = re.compile(r"(?:[dptce][1-9]\d{0,6})+")
SIZE = re.compile(r"([dptce])([1-9]\d*)")
PART = re.compile(r"(?:(?P<backend>[a-z]+)\s*(?:\[\w+\])?|\[\w+\])?\s*[:.]?\s*(?P<sizes>.*)", re.DOTALL)
HYBRID = re.compile(r"\(?\s*attn\s*:\s*(?P<attention>\w+)\s*\|\s*ffn\s*:\s*(?P<experts>\w+)\s*\)?")


@dataclass(frozen=True)
class Part:
    """One part of an allocation: an engine or a trainer with its parallel sizes."""

    backend: str
    """sglang, vllm, fsdp, megatron or archon; "" for bare sizes."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Letter → size: data d, pipeline p, tensor t, context c, expert e. If experts have their own sizes, these are attention's."""

    @property
    def world(self) -> int:
        """The number of GPUs."""
        return self["d"] * self["p"] * self["t"] * self["c"]

    def __getitem__(self, letter: str) -> int:
        return self.sizes.get(letter, 1)

    @property
    def is_engine(self) -> bool:
        """Whether the part is an inference engine."""
        return self.backend in ENGINES


def parse_part(text: str) -> Part | None:
    """Read one part; None for any other text.

    >>> parse_part("fsdp:d4t2"), parse_part("sglang.d4p1t1"), parse_part("four")
    (Part(backend='fsdp', sizes={'d': 4, 't': 2}), Part(backend='sglang', sizes={'d': 4, 'p': 1, 't': 1}), None)
    >>> parse_part("megatron:(attn:d4p2t2c2|ffn:d2p2e4)").sizes
    {'d': 4, 'p': 2, 't': 2, 'c': 2, 'e': 4}
    """
    text = "".join(text.split())
    bare = SIZES.fullmatch(text)
    match = None if bare else PART.fullmatch(text)
    backend, sizes = ("", text) if bare else (match["backend"] or "", match["sizes"]) if match else ("", "")
    if backend not in ("", *ENGINES, *TRAINERS):
        return None
    if hybrid := HYBRID.fullmatch(sizes):
        attention, experts = _read_sizes(hybrid["attention"]), _read_sizes(hybrid["experts"])
        if not attention or not experts:
            return None
        return Part(backend or "megatron", attention | {"e": experts.get("e", 1)})
    found = _read_sizes(sizes)
    return Part(backend, found) if found else None


def _read_sizes(text: str) -> dict[str, int]:
    return {letter: int(number) for letter, number in SIZE.findall(text)} if SIZES.fullmatch(text) else {}


def parse_allocation(text: str) -> tuple[Part | None, Part | None, list[str]]:
    """Read ``allocation_mode``; return (engine, trainer, pieces that are no part); engine and trainer may be None.

    >>> engine, trainer, rest = parse_allocation("sglang.d4p1t1+d2p2t1+eval")
    >>> engine.backend, trainer.backend, trainer.world, rest
    ('sglang', 'megatron', 4, [])
    >>> parse_allocation("vllm:d2t2|fsdp:d4")[1].backend, parse_allocation("d8+four")[::2]
    ('fsdp', (None, ['four']))
    """
    parts = {piece.strip(): parse_part(piece) for piece in _split(text)}
    engine = next((part for part in parts.values() if part is not None and part.is_engine), None)
    trainer = next((part for part in parts.values() if part is not None and not part.is_engine), None)
    if trainer is not None and not trainer.backend:
        trainer = Part("megatron" if trainer["p"] > 1 or trainer["e"] > 1 else "fsdp", trainer.sizes)
    return engine, trainer, [piece for piece, part in parts.items() if part is None and piece not in WITHOUT_SIZES]


def _split(text: str) -> list[str]:
    """Split an allocation at + and |, but not between the sizes of attention and of experts."""
    pieces, depth = [""], 0
    for number, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        is_between = letter == "|" and re.match(r"\|\s*ffn\s*:", text[number:]) is not None
        if letter in "+|" and depth == 0 and not is_between:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces
