"""The interface of a running server that a check uses. Weight names are the engine's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from ckptcheck.live.runtime.engines.base import SequenceScores, TensorDigests, WeightPart
from ckptcheck.live.runtime.servers.layout import ServerLayout

EMPTY_CHECKSUMS = ("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "e3b0c44298fc1c14")
"""SHA-256 of no bytes, whole and as SGLang truncates it: the checksum of a weight that the engine has packed
elsewhere."""


@dataclass(frozen=True)
class ServerInfo:
    """The server's description of itself; "" for a missing fact."""

    engine: str
    version: str = ""
    model: str = ""
    """The path or name that it says it serves."""
    weight_version: str = ""
    dtype: str = ""
    """As torch spells it, "auto" if the checkpoint decides."""
    device: str = ""
    """cpu or cuda."""
    architecture: str = ""
    logprobs_mode: str = ""
    """Which logprobs it returns (vLLM's logprobs_mode)."""
    instance: str = ""
    """Identifies this start of this server."""
    layout: ServerLayout = field(default_factory=ServerLayout)
    extension: str = ""
    """The class that was mixed into its workers (vLLM's worker_extension_cls)."""

    @property
    def name(self) -> str:
        """Engine and version."""
        return f"{self.engine} {self.version}".strip()


@dataclass(frozen=True)
class ServerUpdateResult:
    """The answer of an update call."""

    ok: bool
    """Whether the server reports success."""
    message: str
    """The server's message about it."""


@runtime_checkable
class SummingServer(Protocol):
    """A server whose workers may have ckptcheck's extension, which sums the parts of weights where they lie."""

    def describe_tensors(self, *, seconds: float) -> TensorDigests:
        """Return the tensors of its ranks, without digests. Raises ServerError if its workers lack the extension."""
        ...

    def sum_parts(self, parts: Sequence[WeightPart], ranks: int, *, seconds: float) -> list[tuple[int, int]]:
        """Return the contribution of each part to the two sums of its weight's shard digest. Raises ServerError."""
        ...


class Server(Protocol):
    """A server that answers. Every call raises ServerError; `seconds` limits that one call."""

    url: str
    engine: str

    def info(self, *, seconds: float) -> ServerInfo:
        """Return its description of itself, without guesses for missing facts."""
        ...

    def weight_version(self, *, seconds: float) -> str:
        """Return its weight version by one request that does not reach the scheduler; "" if it has none."""
        ...

    def check_alive(self, *, seconds: float) -> None:
        """Make it generate one token. Raises ServerError if it cannot, even if its port answers."""
        ...

    def checksums(self, *, seconds: float) -> Mapping[str, str]:
        """Return ``rank/name`` → its own checksum of that tensor, hexadecimal."""
        ...

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int, seconds: float) -> list[SequenceScores]:
        """Score sequences of token ids; decode: how many tokens to add greedily, at least 1."""
        ...

    def scramble(self, *, seconds: float) -> None:
        """Make its own checker overwrite its weights, which are then lost."""
        ...

    def update(self, checkpoint: Path, version: str, *, seconds: float) -> ServerUpdateResult:
        """Make it load a checkpoint from its disk into the running engine, and reset its caches."""
        ...
