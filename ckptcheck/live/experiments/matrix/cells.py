"""Lists the cells of a matrix, and drops those that cannot be measured.

Its axes are those of NeMo-RL's guide for new models (docs/adding-new-models.md): lengths 100, 1,000 and 10,000, real and dummy
data, greedy and sampled, batches of 1, 8 and 32, parallel layouts, and ten runs of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.prompts import Data

Decoding = Literal["greedy", "sampling"]
Direction = Literal["engine", "trainer"]
LENGTHS = (100, 1000, 10_000)
"""Lengths of the guide: the default, where the model has the room."""
SIZES = re.compile(r"(?:tp|pp|ep)[1-9][0-9]*")
TRAINERS, DATA, DECODING = ("transformers", "megatron"), ("real", "synthetic"), ("greedy", "sampling")


@dataclass(frozen=True)
class Plan:
    """The axes of a matrix, and how its cells are measured.

    temperature, top_p and top_k are those of sampling cells. Logprobs are always the model's own, so these only decide which
    tokens are compared.
    """

    lengths: tuple[int, ...] = LENGTHS
    """Tokens of prompt and response together."""
    data: tuple[Data, ...] = ("real", "synthetic")
    """Kinds of prompts: text, or random ids."""
    decoding: tuple[Decoding, ...] = ("greedy", "sampling")
    batches: tuple[int, ...] = (1, 8)
    """Numbers of sequences that the engine gets at once."""
    pairs: tuple[tuple[str, str], ...] = (("transformers", "vllm"),)
    """(trainer, engine) pairs that are compared."""
    directions: tuple[Direction, ...] = ("engine", "trainer")
    """Sides that draw the tokens."""
    repeats: int = 2
    """Runs of each cell."""
    response: int = 16
    """Tokens of each response."""
    sequences: int = 4
    """Fewest sequences that a cell compares; a larger batch size compares more."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    layouts: tuple[str, ...] = ()
    """Parallel layouts, such as ``tp2pp2``; (): the one that the sides are started with."""


class Row(NamedTuple):
    """A row of the table."""

    length: int
    data: str
    decoding: str
    batch: int
    layout: str = ""

    def __str__(self) -> str:
        layout = f", {self.layout}" if self.layout else ""
        return f"{self.length:,} tokens, {self.data} data, {self.decoding}, batch {self.batch}{layout}"


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement: one run of a cell of the table in one direction."""

    engine: str
    trainer: str
    length: int
    data: str
    decoding: str
    batch: int
    direction: str
    repeat: int
    layout: str = ""
    """The parallel layout, such as ``tp2pp2``; "" where the matrix has no such axis."""

    @property
    def row(self) -> Row:
        """The row of the table that it belongs to."""
        return Row(self.length, self.data, self.decoding, self.batch, self.layout)

    @property
    def pair(self) -> str:
        """The column of the table that it belongs to, such as ``transformers:vllm``."""
        return f"{self.trainer}:{self.engine}"


def list_cells(plan: Plan) -> Iterator[Cell]:
    """Yield every measurement; those that share a layout, an engine, prompts and responses follow each other."""
    engines = dict.fromkeys(engine for _, engine in plan.pairs)
    for layout, engine in product(plan.layouts or ("",), engines):
        trainers = [trainer for trainer, other in plan.pairs if other == engine]
        for length, data, decoding, batch, repeat, direction, trainer in product(
            plan.lengths, plan.data, plan.decoding, plan.batches, range(plan.repeats), plan.directions, trainers
        ):
            yield Cell(engine, trainer, length, data, decoding, batch, direction, repeat, layout)


def drop_unmeasurable_cells(
    plan: Plan, context: int | None, readable: str, *, default_lengths: bool = False
) -> tuple[Plan, dict[str, str]]:
    """Return the plan without lengths and data that cannot be measured, and a mapping from each of these to the reason.

    context: the model's context length in tokens; SGLang keeps two of them free (see PRB001). readable: why text cannot be
    tokenised, "" where it can. default_lengths: the user named no lengths; then only the first is measured where the context
    length is unknown. Raises CkptcheckError where nothing remains.
    """
    from dataclasses import replace

    reasons: dict[str, str] = {}
    free_tokens = 2 if any(engine == "sglang" for _, engine in plan.pairs) else 0
    for length in plan.lengths:
        if context is None and default_lengths and length > plan.lengths[0]:
            reasons[f"length {length:,}"] = "config.json does not say how many tokens the model takes: give --lengths"
        elif context is not None and length > context:
            reasons[f"length {length:,}"] = f"the model's context ends at {context:,} tokens (config.json)"
        elif context is not None and length > context - free_tokens:
            reasons[f"length {length:,}"] = (
                f"of the model's context of {context:,} tokens SGLang keeps {free_tokens} free"
            )
        elif length < plan.response + 2:
            reasons[f"length {length:,}"] = f"it leaves no room for a prompt beside {plan.response} tokens of response"
    lengths = tuple(length for length in plan.lengths if f"length {length:,}" not in reasons)
    if readable and "real" in plan.data:
        reasons["real data"] = readable
    data = tuple(kind for kind in plan.data if not (readable and kind == "real"))
    if not lengths or not data:
        # the reason of the axis on which nothing is left
        item = next(iter(reasons)) if not lengths else "real data"
        raise CkptcheckError(f"nothing of the matrix can be measured: {item}: {reasons[item]}")
    return replace(plan, lengths=lengths, data=data), reasons


def parse_pairs(texts: Sequence[str], engines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse ``trainer:engine`` pairs; another trainer can stand in the place of the engine.

    Raises CkptcheckError for an unknown trainer or engine, and for a trainer beside itself.

    >>> parse_pairs(["transformers:vllm", "transformers:megatron"], ["vllm"])
    (('transformers', 'vllm'), ('transformers', 'megatron'))
    """
    pairs = []
    for text in texts:
        trainer, _, engine = text.partition(":")
        if trainer not in TRAINERS or engine not in (*engines, *TRAINERS) or trainer == engine:
            raise CkptcheckError(
                f"{text} is no pair of a trainer and an engine",
                hint=f"trainers are {', '.join(TRAINERS)}; engines are {', '.join(engines)}, or the other trainer:"
                " transformers:vllm, transformers:megatron",
            )
        pairs.append((trainer, engine))
    return tuple(dict.fromkeys(pairs))


def parse_layouts(texts: Sequence[str]) -> tuple[str, ...]:
    """Parse parallel layouts, and return them in one spelling. Raises CkptcheckError for any other text.

    >>> parse_layouts(["tp1", "PP2TP2", "tp2·pp2"])
    ('tp1', 'tp2pp2')
    """
    layouts = []
    for text in texts:
        sizes = SIZES.findall(text.lower())
        names = [size[:2] for size in sizes]
        if not sizes or "".join(sizes) != text.lower().replace("·", "") or len(set(names)) < len(names):
            raise CkptcheckError(f"{text} is no parallel layout", hint="write sizes: --layouts tp1,tp2,tp2pp2")
        order = sorted(sizes, key=lambda size: ("tp", "pp", "ep").index(size[:2]))
        layouts.append("".join(size for size in order if size[2:] != "1" or len(order) == 1))
    return tuple(dict.fromkeys(layout or "tp1" for layout in layouts))


def drop_unsplit_pairs(
    pairs: Sequence[tuple[str, str]], layouts: Sequence[str]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return for each layout the pairs that it makes a difference for.

    Megatron is split by all of a layout, an engine by its TP, transformers by nothing. So pairs without Megatron are measured
    once for each TP, and transformers beside transformers never.
    """
    measured: set[tuple[tuple[str, str], str]] = set()
    pairs_of: dict[str, tuple[tuple[str, str], ...]] = {}
    for layout in layouts:
        tp = next((size for size in SIZES.findall(layout) if size.startswith("tp")), "tp1")
        keys = {pair: (pair, layout if "megatron" in pair else tp) for pair in pairs}
        pairs_of[layout] = tuple(pair for pair, key in keys.items() if key not in measured)
        measured |= set(keys.values())
    return pairs_of
