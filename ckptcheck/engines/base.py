"""What a check asks of an inference engine, and how the engine answers.

All names are the engine's own. Names, dtypes and shapes come from where the tensor lives: on each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from ckptcheck.engines.sampling import Generation, Inflight, Sampling

Kind = Literal["parameter", "buffer", "derived"]
"""derived: an attribute that the engine computes with and that is neither, made from parameters after loading."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor that an engine computes with, on one rank.

    dtype: as safetensors spells it. digest: 32 hexadecimal digits over the bytes in row-major order, "" where `opaque`.
    place: where its storage lies, equal for tensors that share it, changed when it was replaced. opaque: why the
    numbers that it computes with cannot be read ("packed for oneDNN"), "" where they can.
    """

    name: str
    rank: int
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str
    place: str
    opaque: str = ""


Manifest = Mapping[tuple[int, str], Entry]
"""(rank, name) → entry, in the engine's order."""


@dataclass(frozen=True)
class EngineInfo:
    """What was started. facts: what tells one set-up from another: backends, kernels, flags, cache block size."""

    name: str
    version: str
    dtype: str
    ranks: int
    architecture: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scrambled:
    """Which tensors were overwritten with marks. left: (rank, name) → why it was not."""

    names: frozenset[tuple[int, str]]
    left: Mapping[tuple[int, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Leftover:
    """Elements of one tensor that an update did not write. ranges: [begin, end) of flat elements, the first few runs.

    count: those that still hold the mark. blank: those that are NaN, as memory is that the update allocated and did not
    write (where the engine can be made to fill it so); a weight that is sent as NaN counts too. total: all elements.
    """

    count: int
    total: int
    ranges: tuple[tuple[int, int], ...]
    blank: int = 0
    blanks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Parcel:
    """A bucket of weights on a plane. names, dtypes, shapes: in the order in which they are sent; HF names.

    address: the plane and the place (see host/exchange.py), or of a process group.
    """

    address: Mapping[str, Any]
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int


@dataclass(frozen=True)
class Answer:
    """What the engine's own update call said. ok: it claimed success. message: its words, or those of its exception.

    returned: the names it said it loaded, None where it says none. version: the weight version it now reports.
    """

    ok: bool
    message: str
    seconds: float
    returned: tuple[str, ...] | None = None
    version: str | None = None


@dataclass(frozen=True)
class Scores:
    """Logprobs (natural, temperature 1) of one sequence.

    prompt: of each token after the first, by prefill. decoded: ids that greedy decoding added; decode: their logprobs,
    by decoding. cached: tokens of the prompt that came from the prefix cache.
    """

    prompt: tuple[float, ...]
    decoded: tuple[int, ...] = ()
    decode: tuple[float, ...] = ()
    cached: int = 0


class Engine(Protocol):
    """An inference engine that holds a model. Every call raises HostDied, HostHung or VerbError as the host does.

    streams: those of its transports that make one stream of all buckets, whatever their sizes. ignored: switches (see switches.py)
    that it was started with and has not taken → why. pauses: what it can do with running requests while weights change.
    """

    info: EngineInfo
    transports: tuple[str, ...]
    streams: tuple[str, ...]
    ignored: Mapping[str, str]
    pauses: tuple[str, ...]

    def manifest(self) -> Manifest:
        """Digest every parameter, buffer and derived tensor on every rank, where they live."""
        ...

    def scramble(self) -> Scrambled:
        """Overwrite what the update path is meant to write with marks that tell tensor and element."""
        ...

    def leftovers(self) -> Mapping[tuple[int, str], Leftover]:
        """Return the scrambled tensors that an update did not write wholly."""
        ...

    def refit(self, parcels: Sequence[Parcel], transport: str, *, timeout: float | None = None) -> Answer:
        """Send the parcels through the engine's public update path, one update in as many buckets as there are.

        transport: one of `transports`. The caches are not reset. An exception of the engine is an answer.
        """
        ...

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[Scores]:
        """Score sequences; decode: how many tokens to add greedily."""
        ...

    def follow(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        """Return the logprobs of the tokens after the first `prompt` ones, each by a step of decoding (forced)."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling], *, salt: str = ""
    ) -> list[Generation]:
        """Return a response for each prompt, all asked at once. salt: prompts of another salt share no cached prefix."""
        ...

    def forced(self, prompt: Sequence[int], tokens: Sequence[int]) -> Generation:
        """Have these tokens decoded after the prompt until the engine itself would stop: at an end token."""
        ...

    def full(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file.

        Tensors "0", "1", …: [tokens - 1, vocabulary], float32, natural, at temperature 1; short sequences only.
        """
        ...

    def inflight(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        parcels: Sequence[Parcel],
        *,
        pause: str,
        clear_cache: bool,
        after: int,
        version: str,
    ) -> Inflight:
        """Update the weights once the first response has `after` tokens. pause: one of `pauses`."""
        ...

    def routes(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts that every token went to: layers, tokens, choices; [] where the engine cannot tell."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget cached keys and values."""
        ...

    def fetch(self, names: Sequence[tuple[int, str]], folder: Path) -> Path:
        """Write tensors to a safetensors file (names ``RANK/NAME``) and return it."""
        ...

    def memory(self) -> int:
        """Return the bytes that the engine's processes hold: on the device, on CPU their resident memory."""
        ...

    def close(self) -> None:
        """End it and all it started; may be called twice."""
        ...
