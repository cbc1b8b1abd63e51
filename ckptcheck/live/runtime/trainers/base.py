"""The interface of a trainer that a check uses. Weight names are Hugging Face's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ckptcheck.live.runtime.engines.base import Bucket

if TYPE_CHECKING:
    from ckptcheck.values.tensor_part import TensorPart


@dataclass(frozen=True)
class TrainerInfo:
    """A started trainer."""

    name: str
    version: str
    dtype: str
    """As torch spells it."""
    layout: str
    """``TP2·PP2``; "" for one process."""
    architecture: str
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts that distinguish this set-up from others: torch, device, GPUs, backend, scheme."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that the trainer exports."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As safetensors spells it."""
    trainer_names: tuple[str, ...] = ()
    """The trainer's names of its parts."""
    owner_ranks: tuple[int, ...] = ()
    """The trainer's ranks that hold these parts."""


@dataclass(frozen=True)
class OptimizerStep:
    """One optimizer step."""

    loss: float
    """Before the step, in nats per token."""
    grad_norm: float
    """Global norm of the gradient."""
    scores: tuple[tuple[float, ...], ...] = ()
    """Logprobs of the step's forward pass, for each token after the first; equal to the result of `score` before the
    step."""
    unchanged: tuple[str, ...] = ()
    """The trainer's names of the parameters that the step did not change."""


@dataclass(frozen=True, slots=True)
class ShardDigest:
    """The part of an exported weight on one rank of the trainer, and the same part of the export."""

    name: str
    """The exported weight."""
    axis: int
    """0 for rows, 1 for columns."""
    begin: int
    end: int
    """The rows or columns of the weight that the rank holds."""
    rank: int
    own: str
    """The trainer's name of the parameter that holds them."""
    held: str
    """The digest of the rank's part."""
    exported: str
    """The digest of the same rows or columns of the export; "" if the export lacks them."""
    sums: tuple[int, int] | None = None
    """Their contribution to the two sums of the weight's shard digest; None if the trainer did not compute it."""
    pieces: tuple[tuple[int, int], ...] = ()
    """The sums of the pieces of a joined weight, in the order of the request; () for any other weight."""


@dataclass(frozen=True, slots=True)
class UnlikeReplicas:
    """A parameter whose copies differ between the trainer's ranks."""

    name: str
    """The trainer's."""
    copies: tuple[tuple[int, ...], ...]
    """The ranks that hold each copy."""
    stale: tuple[int, ...] = ()
    """The ranks whose copy did not change in the last step, although other copies did."""


class Trainer(Protocol):
    """A model that is trained. Every call raises WorkerDied, WorkerTimeout or RemoteError as `WorkerClient.call` does."""

    info: TrainerInfo

    def weights(self) -> Sequence[Weight]:
        """Return the weights that it exports, in export order."""
        ...

    def score(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the logprob of each token after the first: log_softmax(logits / temperature)."""
        ...

    def score_batched(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the same with all sequences padded to the longest, as in a training batch."""
        ...

    def score_full_vocab(self, sequences: Sequence[Sequence[int]], folder: Path, *, raw: bool = False) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file.

        Tensors "0", "1", …: [tokens - 1, vocabulary], float32, natural, at temperature 1; short sequences only. raw: the logits
        instead, of transformers only.
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
        """Sample `number` tokens for each prompt, also past end tokens. Temperature 0 takes the likeliest."""
        ...

    def expert_routing(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts that each token is routed to: layers × tokens × choices; [] if the trainer cannot tell."""
        ...

    def decode_greedy(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        """Return the tokens that greedy decoding adds."""
        ...

    def step(self, sequences: Sequence[Sequence[int]], *, seed: int = 0, rate: float | None = None) -> OptimizerStep:
        """Take an optimizer step on these sequences; every weight changes. rate: the learning rate, None for its own."""
        ...

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        """Multiply every weight by 1 + scale × noise, the same whatever the layout."""
        ...

    def export(self, bucket_bytes: int) -> list[Bucket]:
        """Write all weights to the exchange in buckets of at most this many bytes (one weight may be larger)."""
        ...

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        """Broadcast all weights as rank 0 of a process group, bucket after bucket, in the order of `plan_buckets`."""
        ...

    def plan_buckets(self, bucket_bytes: int) -> list[Bucket]:
        """Return the buckets that `send` will send, without addresses."""
        ...

    def digests(self) -> Mapping[str, str]:
        """Return the digest of every exported weight, computed where it lies, as an engine's `TensorDigest.digest`."""
        ...

    def mismatched_replicas(self) -> tuple[UnlikeReplicas, ...]:
        """Return the parameters whose copies differ between the trainer's ranks; () if there are none."""
        ...

    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face checkpoint that an engine can load, with config and tokenizer."""
        ...

    def close(self) -> None:
        """Stop the trainer and everything it started. May be called twice."""
        ...


@runtime_checkable
class ShardedTrainer(Protocol):
    """A trainer that can digest the weights of each rank without gathering them."""

    def shard_digests(self, pieces: Mapping[str, Sequence[TensorPart]] | None = None) -> Sequence[ShardDigest]:
        """Return every rank's part of every exported weight, beside the same part of an export at this moment.

        pieces: joined weight → the rectangles of its bytes that get their own sums, if a rank holds the whole weight.
        """
        ...


@runtime_checkable
class GpuTrainer(Protocol):
    """A trainer that can send weights from its GPUs to an engine. On a CPU the calls raise RemoteError."""

    def nccl_unique_id(self) -> str:
        """Return the id of an NCCL group whose rank 0 will be the trainer (base64)."""
        ...

    def share_ipc(self, bucket_bytes: int, gpus: Sequence[str]) -> list[Bucket]:
        """Let engines on these GPUs (UUIDs) open the memory of all weights, until `release_ipc`."""
        ...

    def release_ipc(self) -> None:
        """End the sharing of memory; does nothing if no memory is shared."""
        ...
