"""The values that an inference engine takes and returns.

All tensor names are the engine's own. Names, dtypes and shapes come from each rank, where the tensors live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ckptcheck.live.runtime.engines.sampling import Generation

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


if TYPE_CHECKING:
    from ckptcheck.live.runtime.engines.remote import RemoteEngine

    Engine = RemoteEngine[Any]
else:
    Engine = object
"""An engine of either kind, for type hints: `RemoteEngine`, which imports this module, has its methods."""
