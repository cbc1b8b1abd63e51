"""A trainer that packs its weights on their way: it trains in bf16 or float32, and the engine serves them quantized.

Its logprobs come from transformers over the weights after packing and unpacking (float32). A correct engine computes
the same, so the error that the packing itself causes is not blamed on the sync.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.live.runtime.engines.base import Bucket
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.exchange import TensorExchange
from ckptcheck.live.runtime.trainers.base import (
    OptimizerStep,
    ShardDigest,
    ShardedTrainer,
    Trainer,
    UnlikeReplicas,
    Weight,
)
from ckptcheck.live.runtime.trainers.remote import INDEX
from ckptcheck.live.runtime.trainers.schemes import QuantizationScheme
from ckptcheck.text.file_io import read_json_file

if TYPE_CHECKING:
    from ckptcheck.values.tensor_part import TensorPart

MODULE = "ckptcheck_worker.quantize"
BY_REFERENCE = ("score", "score_batched", "score_full_vocab", "sample", "expert_routing", "decode_greedy")
"""Methods of a trainer that the reference has."""
WHOLE = 1 << 30
"""Bytes of a bucket if its size does not matter."""


class QuantizedTrainer:
    """Wraps a trainer; see `base.Trainer`. Closing it closes the wrapped trainer and every process that it started itself.

    Args:
        inner: the trainer that holds the weights.
        python, variables: an interpreter with compressed-tensors, and its environment variables.
        start: starts transformers with a checkpoint; it may reuse the process of the previous trainer, which it gets.
        exchange: where the trainer writes exported weights.
        folder: for checkpoints that this trainer writes.

    Raises:
        RemoteError, WorkerDied, WorkerTimeout: a process does not start.
    """

    def __init__(
        self,
        inner: Trainer,
        scheme: QuantizationScheme,
        *,
        python: Path,
        variables: Mapping[str, str],
        start: Callable[[Path, Trainer | None], Trainer],
        exchange: TensorExchange,
        folder: Path,
    ) -> None:
        self._inner, self._scheme, self._start, self._exchange = inner, scheme, start, exchange
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._reference: Trainer | None = None
        self._stale = True
        self._sent: dict[str, str] | None = None
        self._planned: list[Bucket] = []
        self._weights: tuple[Weight, ...] = ()
        self._number = 0
        group = scheme.config["config_groups"]["group_0"]
        self._host = WorkerClient(
            python, MODULE, name="quantizer", env=dict(variables), scratch=(exchange.folder, folder)
        )
        try:
            response = self._host.call("load", group=group, form=scheme.config["format"])
        except BaseException:
            self._host.close()
            raise
        facts = {
            "scheme": scheme.name,
            "quantizer": scheme.quantizer,
            "compressed_tensors": response["version"],
            "ignore": json.dumps(scheme.config["ignore"]),
        }
        if group["input_activations"] is not None:
            facts["inputs"] = "the engine rounds them too, and the reference does not"
        self.info = replace(inner.info, facts={**inner.info.facts, **facts})

    def weights(self) -> Sequence[Weight]:
        """Return the weights that it exports, with packed tensors in place of each weight that is packed."""
        if not self._weights:
            self.digests()
        return self._weights

    def __getattr__(self, name: str) -> Any:
        """Score and sample by transformers over the weights after packing and unpacking."""
        if name not in BY_REFERENCE:
            raise AttributeError(name)
        return getattr(self._unpacked(), name)

    def step(self, sequences: Sequence[Sequence[int]], *, seed: int = 0, rate: float | None = None) -> OptimizerStep:
        """Take an optimizer step. The result has no scores, because they would belong to unpacked weights."""
        result = self._inner.step(sequences, seed=seed, rate=rate)
        self._changed()
        return replace(result, scores=())

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        """Multiply every weight by 1 + scale × noise, before it is packed."""
        self._inner.perturb(scale, seed=seed)
        self._changed()

    def export(self, bucket_bytes: int) -> list[Bucket]:
        """Write all weights to the exchange, packed, in buckets of at most this many bytes before the packing."""
        packed_buckets = []
        for bucket in self._inner.export(bucket_bytes):
            self._number += 1
            address = self._exchange.address(f"packed-{self._number}")
            packed_buckets.append(_decode_bucket(self._convert(bucket, self._scheme.sent, packed=address)))
            Path(bucket.address["path"]).unlink()
        return packed_buckets

    def plan_buckets(self, bucket_bytes: int) -> list[Bucket]:
        """Pack all weights and return the buckets that `send` will send, without addresses."""
        self._forget()
        self._planned = self.export(bucket_bytes)
        return [replace(bucket, address={}) for bucket in self._planned]

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        """Broadcast the buckets of `plan_buckets` as rank 0 of a process group."""
        buckets = [_encode_bucket(bucket) for bucket in self._planned or self.export(bucket_bytes)]
        self._host.call("send", group=dict(group), buckets=buckets)
        self._forget()

    def digests(self) -> Mapping[str, str]:
        """Return the digest of every packed tensor."""
        if self._sent is None:
            digests: dict[str, str] = {}
            inner_weights = {weight.name: weight for weight in self._inner.weights()}
            packed_weights = []
            for bucket in self._inner.export(WHOLE):
                response = self._convert(bucket, self._scheme.sent)
                Path(bucket.address["path"]).unlink()
                digests |= response["digests"]
                for name, dtype, shape in zip(response["names"], response["dtypes"], response["shapes"], strict=True):
                    inner = inner_weights.get(name) or inner_weights.get(f"{name.rpartition('.')[0]}.weight")
                    packed_weights.append(
                        Weight(
                            name,
                            tuple(shape),
                            dtype,
                            inner.trainer_names if inner else (),
                            inner.owner_ranks if inner else (),
                        )
                    )
            self._sent, self._weights = digests, tuple(packed_weights)
        return self._sent

    def shard_digests(self, pieces: Mapping[str, Sequence[TensorPart]] | None = None) -> Sequence[ShardDigest]:
        """Return the same of the wrapped trainer, before packing; [] if it cannot tell."""
        return self._inner.shard_digests(pieces) if isinstance(self._inner, ShardedTrainer) else []

    def mismatched_replicas(self) -> tuple[UnlikeReplicas, ...]:
        """Return the parameters whose copies differ between the trainer's ranks; () if there are none."""
        return self._inner.mismatched_replicas()

    def save(self, folder: Path) -> None:
        """Write the checkpoint for the engine: packed in the modules that the engine builds packed."""
        self._write(folder, packed=True)

    def close(self) -> None:
        """End the wrapped trainer and every process it started; may be called twice."""
        for trainer in (self._reference, self._inner):
            if trainer is not None:
                trainer.close()
        self._host.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _changed(self) -> None:
        self._sent, self._stale = None, True

    def _forget(self) -> None:
        for bucket in self._planned:
            Path(bucket.address["path"]).unlink(missing_ok=True)
        self._planned = []

    def _unpacked(self) -> Trainer:
        """Return transformers with the weights after packing and unpacking."""
        if self._reference is None or self._stale:
            folder = self._folder / "unpacked"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            self._write(folder, packed=False)
            self._reference, self._stale = self._start(folder, self._reference), False
        return self._reference

    def _write(self, folder: Path, *, packed: bool) -> None:
        """Write a checkpoint as the trainer saves it, with its weights packed, or packed and unpacked again."""
        self._inner.save(folder)
        weight_map = read_json_file(folder / INDEX)["weight_map"]
        names_by_file: dict[str, list[str]] = {}
        for name, file in weight_map.items():
            names_by_file.setdefault(file, []).append(name)
        new_weight_map: dict[str, str] = {}
        total = 0
        for file, names in names_by_file.items():
            source = {"kind": "file", "path": str(folder / file), "tensors": len(names), "bytes": 0}
            target = {"kind": "file", "path": str(folder / f"{file}.made")}
            bucket = Bucket(source, tuple(names), (), (), 0)
            packed_address, plain_address = (target, None) if packed else (None, target)
            response = self._convert(bucket, self._scheme.served, packed=packed_address, plain=plain_address)
            (folder / f"{file}.made").replace(folder / file)
            new_weight_map |= dict.fromkeys(response["names"] if packed else names, file)
            total += response["nbytes"] if packed else response["plain_nbytes"]
        # transformers requires both keys
        new_index = {"metadata": {"total_size": total}, "weight_map": new_weight_map}
        (folder / INDEX).write_text(json.dumps(new_index), encoding="utf-8")
        if packed:
            config = read_json_file(folder / "config.json")
            config["quantization_config"] = dict(self._scheme.config)
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _convert(
        self,
        bucket: Bucket,
        modules: frozenset[str],
        *,
        packed: Mapping[str, str] | None = None,
        plain: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        bucket_modules = [module for module in modules if f"{module}.weight" in set(bucket.names)]
        response: dict[str, Any] = self._host.call(
            "convert", bucket=_encode_bucket(bucket), modules=bucket_modules, packed=packed, plain=plain
        )
        return response


def _encode_bucket(bucket: Bucket) -> dict[str, Any]:
    return {"address": dict(bucket.address), "names": list(bucket.names)}


def _decode_bucket(response: Mapping[str, Any]) -> Bucket:
    shapes = tuple(tuple(shape) for shape in response["shapes"])
    return Bucket(response["address"], tuple(response["names"]), tuple(response["dtypes"]), shapes, response["nbytes"])
