"""Which cells the matrix has, and why some are left out.

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
    """lengths: of prompt and response. pairs: (trainer, engine). directions: who draws the tokens. response: tokens of it.

    sequences: fewest that a cell compares; a batch of more has more. temperature, top_p, top_k: of sampling cells; logprobs are
    always the model's own, so these only decide which tokens are looked at.
    """

    lengths: tuple[int, ...] = (100,)
    data: tuple[Data, ...] = ("real", "synthetic")
    decoding: tuple[Decoding, ...] = ("greedy", "sampling")
    batches: tuple[int, ...] = (1, 8)
    pairs: tuple[tuple[str, str], ...] = (("transformers", "vllm"),)
    directions: tuple[Direction, ...] = ("engine", "trainer")
    repeats: int = 2
    response: int = 16
    sequences: int = 4
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can say it."""
        return asdict(self)


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement: a cell of the table, in one direction, once."""

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
        """The row of the table that it belongs to."""
        return self.length, self.data, self.decoding, self.batch

    @property
    def pair(self) -> str:
        """``transformers:vllm``."""
        return f"{self.trainer}:{self.engine}"


def cells(plan: Plan) -> Iterator[Cell]:
    """Yield every measurement, those first that share an engine, a prompt and a response."""
    engines = dict.fromkeys(engine for _, engine in plan.pairs)
    for engine in engines:
        trainers = [trainer for trainer, other in plan.pairs if other == engine]
        for length, data, decoding, batch, repeat, direction, trainer in product(
            plan.lengths, plan.data, plan.decoding, plan.batches, range(plan.repeats), plan.directions, trainers
        ):
            yield Cell(engine, trainer, length, data, decoding, batch, direction, repeat)


def left_out(plan: Plan, context: int | None, readable: str) -> tuple[Plan, dict[str, str]]:
    """Return the plan without what cannot be measured, and what that is → why.

    context: tokens that the model was made for; with SGLang two of them stay free (see PRB001). readable: why text cannot be
    made into tokens, "" where it can. Raises CkptcheckError where nothing remains.
    """
    from dataclasses import replace

    why: dict[str, str] = {}
    kept = 2 if any(engine == "sglang" for _, engine in plan.pairs) else 0
    for length in plan.lengths:
        if context is not None and length > context:
            why[f"length {length:,}"] = f"the model's context ends at {context:,} tokens (max_position_embeddings)"
        elif context is not None and length > context - kept:
            why[f"length {length:,}"] = f"of the model's context of {context:,} tokens SGLang keeps {kept} free"
        elif length < plan.response + 2:
            why[f"length {length:,}"] = f"it leaves no room for a prompt beside {plan.response} tokens of response"
    lengths = tuple(length for length in plan.lengths if f"length {length:,}" not in why)
    if readable and "real" in plan.data:
        why["real data"] = readable
    data = tuple(each for each in plan.data if not (readable and each == "real"))
    if not lengths or not data:
        first = next(iter(why.items()))
        raise CkptcheckError(f"nothing of the matrix can be measured: {first[0]}: {first[1]}")
    return replace(plan, lengths=lengths, data=data), why


def pairs(texts: Sequence[str], engines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Read ``trainer:engine`` pairs. Raises CkptcheckError for one that is not known.

    >>> pairs(["transformers:vllm", "megatron:vllm"], ["vllm"])
    (('transformers', 'vllm'), ('megatron', 'vllm'))
    """
    found = []
    for text in texts:
        trainer, _, engine = text.partition(":")
        if trainer not in TRAINERS or engine not in engines:
            raise CkptcheckError(
                f"{text} is no pair of a trainer and an engine",
                hint=f"trainers are {', '.join(TRAINERS)}; engines are {', '.join(engines)}: transformers:vllm",
            )
        found.append((trainer, engine))
    return tuple(dict.fromkeys(found))
