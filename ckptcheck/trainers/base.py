"""What a check asks of a trainer, and how it answers. All names are Hugging Face's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ckptcheck.engines.base import Parcel


@dataclass(frozen=True)
class TrainerInfo:
    """What was started. layout: ``TP2·PP2``, "" for one process. facts: what tells one set-up from another."""

    name: str
    version: str
    dtype: str
    layout: str
    architecture: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that the trainer holds. own: the trainer's names for what it is made of; owners: the ranks that hold them."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    own: tuple[str, ...] = ()
    owners: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """One optimizer step: the loss (nats a token) before it and the global norm of the gradient.

    scores: the logprobs that its forward computed, each token after the first; equal to those of `score` before the step.
    unchanged: the trainer's own names of the parameters that it left as they were.
    """

    loss: float
    grad_norm: float
    scores: tuple[tuple[float, ...], ...] = ()
    unchanged: tuple[str, ...] = ()


class Trainer(Protocol):
    """A model that is trained. Every call raises HostDied, HostHung or VerbError as the host does."""

    info: TrainerInfo

    def weights(self) -> Sequence[Weight]:
        """Return what it exports, in the order in which it exports."""
        ...

    def score(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the logprob of each token after the first: log_softmax(logits / temperature)."""
        ...

    def padded(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the same where all are filled up to the length of the longest, as in a training batch."""
        ...

    def full(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file.

        Tensors "0", "1", …: [tokens - 1, vocabulary], float32, natural, at temperature 1; short sequences only.
        """
        ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        number: int,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
    ) -> list[tuple[int, ...]]:
        """Return so many tokens drawn from the model for each prompt, past end tokens too; temperature 0: the likeliest."""
        ...

    def routes(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts that every token goes to: layers, tokens, choices; [] where the trainer cannot tell."""
        ...

    def greedy(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        """Return the tokens that greedy decoding adds."""
        ...

    def step(self, sequences: Sequence[Sequence[int]], *, seed: int = 0, rate: float | None = None) -> Step:
        """Take an optimizer step on these sequences; every weight changes. rate: the learning rate, None for its own."""
        ...

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        """Multiply every weight by 1 + scale × noise, the same whatever the layout."""
        ...

    def export(self, bucket_bytes: int) -> list[Parcel]:
        """Put all weights on the plane in buckets of at most this many bytes (one weight may be larger)."""
        ...

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        """Broadcast all weights as rank 0 of a process group, bucket after bucket, in the order of `plan`."""
        ...

    def plan(self, bucket_bytes: int) -> list[Parcel]:
        """Return the buckets that `send` would send, with no address."""
        ...

    def digests(self) -> Mapping[str, str]:
        """Return the digest of every exported weight, computed where it lives; as an engine's `Entry.digest`."""
        ...

    def replicas(self) -> tuple[str, ...]:
        """Return the trainer's own names of parameters of which its ranks hold different copies; () is well."""
        ...

    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face checkpoint that an engine can load, config and tokenizer copied."""
        ...

    def close(self) -> None:
        """End it and all it started; may be called twice."""
        ...


@runtime_checkable
class Lender(Protocol):
    """A trainer whose weights lie on GPUs and can reach an engine from there. On a CPU the calls raise VerbError."""

    def unique_id(self) -> str:
        """Return the id of an NCCL group of which the trainer will be rank 0 (base64)."""
        ...

    def lend(self, bucket_bytes: int, gpus: Sequence[str]) -> list[Parcel]:
        """Let engines on these GPUs (UUIDs) open the memory of all weights, until `reclaim`."""
        ...

    def reclaim(self) -> None:
        """Take back what is lent; nothing happens where nothing is."""
        ...
