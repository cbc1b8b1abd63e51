"""The interface of an inference engine, and the values it returns.

All tensor names are the engine's own. Names, dtypes and shapes come from each rank, where the tensors live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from ckptcheck.live.runtime.engines.sampling import Generation, Sampling
    from ckptcheck.live.runtime.engines.transports import Transport

Kind = Literal["parameter", "buffer", "derived"]
"""derived: an attribute that the engine builds from parameters after loading, and computes with."""


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """One tensor that an engine computes with, on one rank."""

    name: str
    rank: int
    kind: Kind
    dtype: str
    """As safetensors spells it."""
    shape: tuple[int, ...]
    nbytes: int
    digest: str
    """32 hexadecimal digits over the bytes in row-major order, "" where `opaque` is set."""
    storage: str
    """The address of the storage: equal for tensors that share it, different after a replacement."""
    opaque: str = ""
    """Why the numbers that the engine computes with cannot be read ("packed for oneDNN"); "" if they can."""


TensorDigests = Mapping[tuple[int, str], TensorDigest]
"""(rank, name) → digest, in the engine's order."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """The part of a weight, under its Hugging Face name, that one tensor of an engine holds on one rank."""

    weight: str
    whole: tuple[int, ...]
    """Shape of the weight."""
    origin: tuple[int, ...]
    """Index of the part's first element in the weight."""
    rank: int
    name: str
    """The engine's tensor."""
    begin: int
    """Its first flat element that belongs to the part."""
    shape: tuple[int, ...]
    pitch: int = 0
    """Elements from one row to the next, if the engine pads rows; otherwise 0."""


HostScalars = Mapping[tuple[int, str], float]
"""(rank, name) → a number that a module of the engine keeps on the host: an int or a float."""


def same_number(one: float, other: float | None) -> bool:
    """Return whether two numbers of an engine are equal; NaN is equal to NaN, and None is no number.

    >>> same_number(1, 1.0), same_number(float("nan"), float("nan")), same_number(1.0, None)
    (True, True, False)
    """
    return other is not None and (one == other or (one != one and other != other))


@dataclass(frozen=True)
class ExpertSlots:
    """The slots of one tensor of experts, on one rank. An engine with redundant experts has several slots for some experts."""

    experts: tuple[int, ...]
    """The expert whose weights each slot holds, by the engine's own map."""
    part: int
    """Which part of each expert this rank holds: 0 if experts are not sharded."""
    digests: tuple[str, ...]
    """The digest of each slot, like `TensorDigest.digest`."""


@dataclass(frozen=True)
class EngineInfo:
    """The engine that was started."""

    name: str
    version: str
    dtype: str
    ranks: int
    architecture: str
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts that distinguish one configuration from another: device, kernels, flags, cache block size."""


@dataclass(frozen=True)
class ScrambleResult:
    """The tensors, by (rank, name), that now hold sentinels."""

    names: frozenset[tuple[int, str]]
    skipped: Mapping[tuple[int, str], str] = field(default_factory=dict)
    """(rank, name) → why the tensor was not overwritten."""


@dataclass(frozen=True)
class UnwrittenElements:
    """Elements of one tensor that an update did not write. Ranges are [begin, end) of flat elements, the first few runs."""

    sentinel_count: int
    """Elements that still hold their sentinel."""
    total: int
    """All elements of the tensor."""
    sentinel_ranges: tuple[tuple[int, int], ...]
    nan_count: int = 0
    """Elements that are NaN: memory that the update allocated and did not write, if the engine fills new memory with
    NaN. A weight that the trainer sent as NaN counts too."""
    nan_ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A tensor as it reached the model's own load_weights on one rank of an engine."""

    name: str
    rank: int
    dtype: str
    shape: tuple[int, ...]
    digest: str
    """Like `TensorDigest.digest`."""


@dataclass(frozen=True, slots=True)
class LoadedParameter:
    """A parameter as the model's own load_weights left it."""

    digest: str
    """Like `TensorDigest.digest`; likewise the storage."""
    storage: str


@dataclass(frozen=True)
class LoadedWeights:
    """The tensors that the model's own load_weights received in an update, on every rank."""

    arrived: tuple[Arrival, ...]
    """The arguments of its calls, in order."""
    parameters: Mapping[tuple[int, str], LoadedParameter] = field(default_factory=dict)
    """(rank, name) → the parameter once load_weights had received everything; {} if it did not."""
    seconds: float = 0.0
    """Seconds that the update waited for the digests of the parameters."""


@dataclass(frozen=True)
class Bucket:
    """A bucket of weights, in the order in which they are sent, under their Hugging Face names."""

    address: Mapping[str, Any]
    """Where the tensors are: a file (see process/exchange.py), a process group, or shared GPU memory."""
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int


@dataclass(frozen=True)
class UpdateResult:
    """The result of the engine's own update call."""

    ok: bool
    """Whether the engine claimed success."""
    message: str
    """The engine's message, or that of its exception."""
    seconds: float
    loaded_names: tuple[str, ...] | None = None
    """The names that the engine reports as loaded; None if it reports none."""
    weight_version: str | None = None
    """The weight version that the engine reports afterwards."""
    refusal: str = ""
    """How the engine refused an action of the conformance kit between two buckets; "" if it did not."""


@dataclass(frozen=True, slots=True)
class InflightResult:
    """The result of a weight update while requests ran."""

    update: UpdateResult
    generations: tuple[Generation, ...]
    """The responses, in the order of the requests."""


@dataclass(frozen=True)
class SequenceScores:
    """Logprobs (natural, temperature 1) of one sequence."""

    prompt_logprobs: tuple[float, ...]
    """Of each token after the first, by prefill."""
    decoded_tokens: tuple[int, ...] = ()
    """Tokens that greedy decoding added."""
    decode_logprobs: tuple[float, ...] = ()
    """Logprobs of the decoded tokens, by decoding."""
    cached_tokens: int = 0
    """Tokens of the prompt that came from the prefix cache."""


class Running(Protocol):
    """A running engine. Every call raises WorkerDied, WorkerTimeout or RemoteError as `WorkerClient.call` does."""

    info: EngineInfo
    ignored_switches: Mapping[str, str]
    """Requested switch (see engine_options.py) that the engine did not apply → why."""

    def close(self) -> None:
        """End the engine and every process it started; may be called twice."""
        ...


class Updatable(Running, Protocol):
    """An engine whose weights can be updated."""

    transports: tuple[Transport, ...]
    """The transports by which this engine, on this device, takes weights."""

    def update_weights(
        self, buckets: Sequence[Bucket], transport: str, *, timeout: float | None = None
    ) -> UpdateResult:
        """Send the buckets through the engine's public update path, as one update.

        transport: the name of one of `transports`. Does not reset the caches. An exception of the engine becomes a failed
        `UpdateResult`.
        """
        ...

    def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values."""
        ...


class Inspectable(Running, Protocol):
    """An engine whose tensors can be read where they live."""

    def digest_tensors(self) -> TensorDigests:
        """Digest every parameter, buffer and derived tensor on every rank, where they live."""
        ...

    def read_scalars(self) -> HostScalars:
        """Return the numbers that the engine's modules keep on the host, on every rank."""
        ...

    def scramble_weights(self, *, keep_draft: bool | None = None) -> ScrambleResult:
        """Overwrite every tensor that an update should write with sentinels, different for each tensor and element.

        keep_draft: whether to leave out the tensors of a draft model, because the trainer does not send it; None: the
        engine leaves out a draft model that has its own checkpoint.
        """
        ...

    def find_unwritten(self) -> Mapping[tuple[int, str], UnwrittenElements]:
        """Return the scrambled tensors that an update did not write completely."""
        ...

    def fetch_tensors(self, names: Sequence[tuple[int, str]], folder: Path) -> Path:
        """Write tensors to a safetensors file (names ``RANK/NAME``) and return it."""
        ...

    def memory_bytes(self) -> int:
        """Return the bytes that the engine's processes hold: on the device, on a CPU their resident memory."""
        ...


class Scorer(Running, Protocol):
    """An engine that computes the logprobs of given tokens."""

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[SequenceScores]:
        """Score sequences by prefill; decode: how many tokens to add by greedy decoding."""
        ...

    def score_by_decode(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        """Return the logprobs of the tokens after the first `prompt` ones, each from a decode step with the token forced."""
        ...

    def score_full_vocab(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file.

        Tensors "0", "1", …: [tokens - 1, vocabulary], float32, natural, at temperature 1; short sequences only.
        """
        ...

    def expert_routing(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts of every token as [layer][token][choice]; [] if the engine cannot report them."""
        ...

    def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values."""
        ...


class Generator(Running, Protocol):
    """An engine that generates."""

    pause_modes: tuple[str, ...]
    """The ways in which the engine treats running requests while weights change."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling | Sequence[Sampling], *, salt: str = ""
    ) -> list[Generation]:
        """Return a response for each prompt, all requested at once. salt: prompts with different salts share no cached prefix."""
        ...

    def force_decode(self, prompt: Sequence[int], tokens: Sequence[int]) -> Generation:
        """Force the engine to decode these tokens after the prompt, until the engine itself stops: at an end token."""
        ...

    def update_inflight(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        buckets: Sequence[Bucket],
        *,
        transport: str,
        pause: str,
        clear_cache: bool,
        after: int,
        version: str,
    ) -> InflightResult:
        """Update the weights while requests run, once the first response has `after` tokens.

        transport: one of `transports` that supports it. pause: one of `pause_modes`.
        """
        ...


class Engine(Updatable, Inspectable, Scorer, Generator, Protocol):
    """An inference engine that can do all of these. A function asks for the smallest protocol that it needs.

    capabilities.py lists the abilities that only some engines have.
    """
