"""Lists the cells of a matrix, and drops those that cannot be measured.

Its axes are those of NeMo-RL's guide for new models (docs/adding-new-models.md): lengths 100, 1,000 and 10,000, real and dummy
data, greedy and sampled, batches of 1, 8 and 32, and ten runs of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal

from ckptcheck.errors import CkptcheckError
from ckptcheck.parity.prompts import Data

Decoding = Literal["greedy", "sampling"]
Direction = Literal["engine", "trainer"]
TRAINERS, DATA, DECODING = ("transformers", "megatron"), ("real", "synthetic"), ("greedy", "sampling")


@dataclass(frozen=True)
class Plan:
    """The axes of a matrix, and how its cells are measured.

    temperature, top_p and top_k are those of sampling cells. Logprobs are always the model's own, so these only decide which
    tokens are compared.
    """

    lengths: tuple[int, ...] = (100,)
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

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a dictionary that JSON can represent."""
        return asdict(self)


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

    @property
    def row(self) -> tuple[int, str, str, int]:
        """The row of the table that it belongs to: length, data, decoding, batch."""
        return self.length, self.data, self.decoding, self.batch

    @property
    def pair(self) -> str:
        """The column of the table that it belongs to, such as ``transformers:vllm``."""
        return f"{self.trainer}:{self.engine}"


def list_cells(plan: Plan) -> Iterator[Cell]:
    """Yield every measurement; those that share an engine, prompts and responses follow each other."""
    engines = dict.fromkeys(engine for _, engine in plan.pairs)
    for engine in engines:
        trainers = [trainer for trainer, other in plan.pairs if other == engine]
        for length, data, decoding, batch, repeat, direction, trainer in product(
            plan.lengths, plan.data, plan.decoding, plan.batches, range(plan.repeats), plan.directions, trainers
        ):
            yield Cell(engine, trainer, length, data, decoding, batch, direction, repeat)


def drop_unmeasurable_cells(plan: Plan, context: int | None, readable: str) -> tuple[Plan, dict[str, str]]:
    """Return the plan without lengths and data that cannot be measured, and a mapping from each of these to the reason.

    context: the model's context length in tokens; SGLang keeps two of them free (see PRB001). readable: why text cannot be
    tokenised, "" where it can. Raises CkptcheckError where nothing remains.
    """
    from dataclasses import replace

    reasons: dict[str, str] = {}
    free_tokens = 2 if any(engine == "sglang" for _, engine in plan.pairs) else 0
    for length in plan.lengths:
        if context is not None and length > context:
            reasons[f"length {length:,}"] = f"the model's context ends at {context:,} tokens (max_position_embeddings)"
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
        first = next(iter(reasons.items()))
        raise CkptcheckError(f"nothing of the matrix can be measured: {first[0]}: {first[1]}")
    return replace(plan, lengths=lengths, data=data), reasons


def parse_pairs(texts: Sequence[str], engines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse ``trainer:engine`` pairs. Raises CkptcheckError for an unknown trainer or engine.

    >>> parse_pairs(["transformers:vllm", "megatron:vllm"], ["vllm"])
    (('transformers', 'vllm'), ('megatron', 'vllm'))
    """
    pairs = []
    for text in texts:
        trainer, _, engine = text.partition(":")
        if trainer not in TRAINERS or engine not in engines:
            raise CkptcheckError(
                f"{text} is no pair of a trainer and an engine",
                hint=f"trainers are {', '.join(TRAINERS)}; engines are {', '.join(engines)}: transformers:vllm",
            )
        pairs.append((trainer, engine))
    return tuple(dict.fromkeys(pairs))
