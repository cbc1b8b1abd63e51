"""A trainer in a worker process: what all trainers have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.files_beside import copy_files_beside
from ckptcheck.live.runtime.engines import codec
from ckptcheck.live.runtime.engines.activations import Activations, assemble_activations
from ckptcheck.live.runtime.engines.base import Bucket
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.base import OptimizerStep, ShardDigest, TrainerInfo, UnlikeReplicas, Weight
from ckptcheck.live.runtime.worker.ckptcheck_worker.buckets import split_into_buckets
from ckptcheck.text.file_io import real_path

if TYPE_CHECKING:
    from ckptcheck.values.tensor_part import TensorPart

BYTES = {"F32": 4, "BF16": 2}
NAMES = {"float32": "F32", "bfloat16": "BF16"}
"""torch's name of a dtype → that of safetensors."""
RATES = {"float32": 1e-4, "bfloat16": 5e-3}
"""dtype → learning rate of a step. In bfloat16 a number just below 2 must move by 0.004 to change."""
SHARD = 1 << 30
"""Bytes of one file of a saved checkpoint."""
INDEX = "model.safetensors.index.json"
OWN = ("config.json", INDEX)


class RemoteTrainer:
    """A trainer in a worker process; see `base.Trainer`. `start_megatron` and `start_transformers` create it.

    host: the worker, which this trainer closes. weights: the weights that it exports, in export order. exchange: where
    the trainer writes them; it belongs to the caller. source: the folder with the tokenizer, or None. config: for the
    config.json of saved checkpoints. timeout: seconds for any one call, None for no limit; it may be set at any time.
    """

    def __init__(
        self,
        host: WorkerClient,
        info: TrainerInfo,
        weights: Sequence[Weight],
        *,
        exchange: TensorExchange,
        source: Path | None,
        config: Mapping[str, Any],
        timeout: float | None = None,
    ) -> None:
        self.info = info
        self.timeout = timeout
        self.host = host
        self._weights = tuple(weights)
        self._exchange = exchange
        self._source = source
        self._config = config
        self._exports = 0

    def weights(self) -> Sequence[Weight]:
        """Return the weights that it exports, in export order."""
        return self._weights

    def score(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the logprob of each token after the first."""
        response = self._ask("score", sequences=_as_lists(sequences), temperature=temperature)
        return [tuple(values) for values in response]

    def score_batched(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the same with all sequences padded to the longest, as in Megatron's microbatches; transformers takes one batch."""
        response = self._ask("score_batched", sequences=_as_lists(sequences), temperature=temperature)
        return [tuple(values) for values in response]

    def score_full_vocab(self, sequences: Sequence[Sequence[int]], folder: Path, *, raw: bool = False) -> Path:
        """Write the logprobs, or the logits, of the whole vocabulary after each token but the last, and return the file."""
        path = real_path(folder) / "full-trainer.safetensors"
        self._ask("score_full_vocab", sequences=_as_lists(sequences), path=str(path), **({"raw": True} if raw else {}))
        return path

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
        """Sample tokens from the model. Temperature 0 takes the likeliest; top_p 1 and top_k 0 switch those filters off."""
        response = self._ask(
            "sample",
            prompts=_as_lists(prompts),
            number=number,
            temperature=temperature,
            seed=seed,
            top_p=top_p,
            top_k=top_k,
        )
        return [tuple(tokens) for tokens in response]

    def expert_routing(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts that each token is routed to: layers × tokens × choices; [] if the trainer cannot tell."""
        response: list[list[list[int]]] = self._ask("expert_routing", sequence=list(tokens))
        return response

    def capture_activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return the output of every module for a prompt, assembled from all ranks. folder: for the files that the ranks write."""
        path = real_path(folder) / "trainer"
        return assemble_activations(
            self._ask("capture_activations", tokens=list(map(int, tokens)), path=str(path)), len(tokens)
        )

    def decode_greedy(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        """Return the tokens that greedy decoding adds."""
        return tuple(self._ask("decode_greedy", tokens=list(tokens), number=number))

    def step(self, sequences: Sequence[Sequence[int]], *, seed: int = 0, rate: float | None = None) -> OptimizerStep:
        """Take a step of Adam at this learning rate (1e-4 in float32, 5e-3 in bfloat16)."""
        rate = RATES[self.info.dtype] if rate is None else rate
        response = self._ask("step", sequences=_as_lists(sequences), seed=seed, rate=rate)
        scores = tuple(tuple(values) for values in response["scores"])
        token_count = sum(map(len, scores))
        loss = -sum(map(sum, scores)) / token_count if token_count else 0.0
        return OptimizerStep(loss, response["grad_norm"], scores, tuple(response["unchanged"]))

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        """Multiply every weight by 1 + scale × noise, the same whatever the layout."""
        self._ask("perturb", scale=scale, seed=seed)

    def export(self, bucket_bytes: int) -> list[Bucket]:
        """Write all weights to the exchange in buckets of at most this many bytes (one weight may be larger)."""
        plan = self.plan_buckets(bucket_bytes)
        self._exports += 1
        addresses = [self._exchange.address(f"weights-{self._exports}-{number}") for number in range(len(plan))]
        return self._put(plan, addresses)

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        """Broadcast all weights as rank 0 of a process group (ckptcheck_worker/communicator.py).

        The order is that of `plan_buckets`. bucket_bytes is not used: weights go one by one, and only the engine that
        receives them puts them into buckets.
        """
        self._ask("send", group=dict(group))

    def nccl_unique_id(self) -> str:
        """Return the id of an NCCL group whose rank 0 will be the trainer (base64). Raises RemoteError on a CPU."""
        return str(self._ask("nccl_unique_id"))

    def share_ipc(self, bucket_bytes: int, gpus: Sequence[str]) -> list[Bucket]:
        """Let engines on these GPUs open the memory of all weights (ckptcheck_worker/ipc.py), until `release_ipc`.

        A weight that is on none of these GPUs, or that consists of the parts of several ranks, is copied there first. Raises
        RemoteError on a CPU, and for a GPU that the trainer does not see.
        """
        handles = iter(self._ask("share_ipc", gpus=list(gpus)))
        return [
            replace(bucket, address={"kind": "ipc", "handles": [next(handles) for _ in bucket.names]})
            for bucket in self.plan_buckets(bucket_bytes)
        ]

    def release_ipc(self) -> None:
        """End the sharing of memory; does nothing if no memory is shared."""
        self._ask("release_ipc")

    def plan_buckets(self, bucket_bytes: int) -> list[Bucket]:
        """Return the buckets that `send` will send, without addresses."""
        sizes = [prod(weight.shape) * BYTES[weight.dtype] for weight in self._weights]
        buckets = []
        for indices in split_into_buckets(sizes, bucket_bytes):
            weights = [self._weights[index] for index in indices]
            buckets.append(
                Bucket(
                    {},
                    tuple(weight.name for weight in weights),
                    tuple(weight.dtype for weight in weights),
                    tuple(weight.shape for weight in weights),
                    sum(sizes[index] for index in indices),
                )
            )
        return buckets

    def digests(self) -> Mapping[str, str]:
        """Return the digest of every exported weight, computed on the trainer's device, as an engine's `TensorDigest.digest`."""
        response: Mapping[str, str] = self._ask("digests")
        return response

    def shard_digests(self, pieces: Mapping[str, Sequence[TensorPart]] | None = None) -> Sequence[ShardDigest]:
        """Return every rank's part of every exported weight, beside the same part of an export at this moment."""
        asked = {"pieces": codec.encode_pieces(pieces)} if pieces else {}
        return [
            ShardDigest(
                **{
                    **row,
                    "sums": codec.decode_sums(row["sums"]) if "sums" in row else None,
                    "pieces": tuple(map(codec.decode_sums, row.get("pieces", ()))),
                }
            )
            for row in self._ask("shard_digests", **asked)
        ]

    def mismatched_replicas(self) -> tuple[UnlikeReplicas, ...]:
        """Return the parameters whose copies differ between the trainer's ranks; () if there are none."""
        return tuple(
            UnlikeReplicas(row["name"], tuple(map(tuple, row["copies"])), tuple(row["stale"]))
            for row in self._ask("mismatched_replicas")
        )

    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face checkpoint that an engine can load, with config and tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        plan = self.plan_buckets(SHARD)
        files = [f"model-{number + 1:05d}-of-{len(plan):05d}" for number in range(len(plan))]
        self._put(plan, [{"kind": "file", "path": str(folder / f"{file}.safetensors")} for file in files])
        index = {name: f"{file}.safetensors" for file, bucket in zip(files, plan, strict=True) for name in bucket.names}
        total = sum(bucket.nbytes for bucket in plan)
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": index})
        _write_json(folder / "config.json", {**self._config, "dtype": self.info.dtype})
        if self._source is not None:
            copy_files_beside(self._source, folder, lambda name: name not in OWN)

    def save_torch_dist(self, folder: Path) -> None:
        """Write a torch_dist checkpoint by Megatron's own saver. Raises RemoteError for a trainer without one."""
        folder.mkdir(parents=True, exist_ok=True)
        self._ask("save_checkpoint", folder=str(folder.absolute()))

    def close(self) -> None:
        """End the worker and every process it started; may be called twice."""
        self.host.close()

    def _put(self, plan: Sequence[Bucket], addresses: Sequence[Mapping[str, str]]) -> list[Bucket]:
        locations = self._ask(
            "export", buckets=_bucket_ranges(plan), addresses=[dict(address) for address in addresses]
        )
        return [
            Bucket(address, bucket.names, bucket.dtypes, bucket.shapes, bucket.nbytes)
            for address, bucket in zip(locations, plan, strict=True)
        ]

    def _ask(self, method: str, **arguments: Any) -> Any:
        return self.host.call(method, timeout=self.timeout, **arguments)


def _as_lists(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(sequence) for sequence in sequences]


def _bucket_ranges(plan: Sequence[Bucket]) -> list[list[int]]:
    """Return [begin, end) of the exported weights in each bucket."""
    ranges, begin = [], 0
    for bucket in plan:
        ranges.append([begin, begin + len(bucket.names)])
        begin += len(bucket.names)
    return ranges


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
