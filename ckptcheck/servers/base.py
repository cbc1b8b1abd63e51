"""What a check asks of a running server, and how it answers. All names of weights are the engine's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ckptcheck.engines.base import Scores
from ckptcheck.servers.layout import Layout

NOTHING = ("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "e3b0c44298fc1c14")
"""SHA-256 of no bytes, whole and as SGLang cuts it: what packed weights leave behind."""


@dataclass(frozen=True)
class About:
    """What a server says of itself; "" where it does not say.

    model: the path or name it says it serves. weights: its weight version. dtype: as torch spells it, "auto" where the
    checkpoint decides. device: cpu, cuda. sampled: which logprobs it returns (vLLM's logprobs_mode). instance: what tells this
    server, since it was started, from every other. layout: how it spreads the model.
    """

    engine: str
    version: str = ""
    model: str = ""
    weights: str = ""
    dtype: str = ""
    device: str = ""
    architecture: str = ""
    sampled: str = ""
    instance: str = ""
    layout: Layout = field(default_factory=Layout)

    @property
    def name(self) -> str:
        """Engine and version."""
        return f"{self.engine} {self.version}".strip()


@dataclass(frozen=True)
class Answered:
    """What an update call said. ok: it claimed success; message: its words."""

    ok: bool
    message: str


class Server(Protocol):
    """A server that speaks. Every call raises ServerTrouble; `seconds` is for that one call."""

    url: str
    engine: str

    def about(self, *, seconds: float) -> About:
        """Return what it says of itself. What it does not tell is left out, never guessed."""
        ...

    def weight_version(self, *, seconds: float) -> str:
        """Return the weight version it reports, by one request that no scheduler is asked for; "" where it has none."""
        ...

    def alive(self, *, seconds: float) -> None:
        """Have it generate one token. Raises ServerTrouble where it cannot, whatever its port says."""
        ...

    def checksums(self, *, seconds: float) -> Mapping[str, str]:
        """Return ``rank/name`` → its own checksum of that tensor, hexadecimal."""
        ...

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int, seconds: float) -> list[Scores]:
        """Score sequences of token ids; decode: how many tokens to add greedily, at least 1."""
        ...

    def scramble(self, *, seconds: float) -> None:
        """Overwrite its weights with what its own checker fills in: they are gone then."""
        ...

    def update(self, checkpoint: Path, version: str, *, seconds: float) -> Answered:
        """Have it load a checkpoint from its disk into the running engine, and forget its caches."""
        ...
