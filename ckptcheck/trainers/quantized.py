"""A trainer whose weights are packed on their way: it trains in bf16 or float32, and the engine serves them quantized.

Its logprobs are those of transformers over the weights as they come out of the packing (float32), which is what an engine
without faults computes: what the packing itself costs is no fault of a sync.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckptcheck.engines.base import Parcel
from ckptcheck.host.exchange import Exchange
from ckptcheck.host.host import Host
from ckptcheck.trainers.base import Step, Trainer, Weight
from ckptcheck.trainers.remote import INDEX
from ckptcheck.trainers.schemes import Scheme

MODULE = "ckptcheck_far.compressing"
WHOLE = 1 << 30
"""Bytes of a bucket where its size is nobody's matter."""


class QuantizedTrainer:
    """Wraps a trainer; see `base.Trainer`. Ends it and all that it starts itself when it is closed.

    inner: holds the weights. python, variables: an interpreter that has compressed-tensors. start: starts transformers with a
    checkpoint, in the process of the one before where there is one. folder: for what is written on the way.

    Raises VerbError, HostDied or HostHung where a process does not start.
    """

    def __init__(
        self,
        inner: Trainer,
        scheme: Scheme,
        *,
        python: Path,
        variables: Mapping[str, str],
        start: Callable[[Path, Trainer | None], Trainer],
        exchange: Exchange,
        folder: Path,
    ) -> None:
        self._inner, self._scheme, self._start, self._exchange = inner, scheme, start, exchange
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._reference: Trainer | None = None
        self._stale = True
        self._sent: dict[str, str] | None = None
        self._planned: list[Parcel] = []
        self._weights: tuple[Weight, ...] = ()
        self._number = 0
        group = scheme.config["config_groups"]["group_0"]
        self._host = Host(python, MODULE, name="quantizer", env=dict(variables), scratch=(exchange.folder, folder))
        try:
            said = self._host.call("load", group=group, form=scheme.config["format"])
        except BaseException:
            self._host.close()
            raise
        facts = {
            "scheme": scheme.name,
            "quantizer": scheme.quantizer,
            "compressed_tensors": said["version"],
            "ignore": json.dumps(scheme.config["ignore"]),
        }
        if group["input_activations"] is not None:
            facts["inputs"] = "the engine rounds them too, and the reference does not"
        self.info = replace(inner.info, facts={**inner.info.facts, **facts})

    def weights(self) -> Sequence[Weight]:
        """Return what it exports: packed weights in place of those that were packed."""
        if not self._weights:
            self.digests()
        return self._weights

    def score(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the logprobs of transformers over the weights that were packed and unpacked."""
        return self._unpacked().score(sequences, temperature=temperature)

    def greedy(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        """Return the tokens that these weights decode greedily."""
        return self._unpacked().greedy(tokens, number)

    def step(self, sequences: Sequence[Sequence[int]], *, seed: int = 0, rate: float | None = None) -> Step:
        """Take an optimizer step; its scores are of weights that are not packed, and are left out."""
        taken = self._inner.step(sequences, seed=seed, rate=rate)
        self._changed()
        return replace(taken, scores=())

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        """Multiply every weight by 1 + scale × noise, before it is packed."""
        self._inner.perturb(scale, seed=seed)
        self._changed()

    def export(self, bucket_bytes: int) -> list[Parcel]:
        """Put all weights on the plane, packed, in buckets that held at most this many bytes before."""
        found = []
        for parcel in self._inner.export(bucket_bytes):
            self._number += 1
            address = self._exchange.address(f"packed-{self._number}")
            found.append(_parcel(self._convert(parcel, self._scheme.sent, packed=address)))
            Path(parcel.address["path"]).unlink()
        return found

    def plan(self, bucket_bytes: int) -> list[Parcel]:
        """Pack all weights and return the buckets that `send` will send, with no address."""
        self._forget()
        self._planned = self.export(bucket_bytes)
        return [replace(parcel, address={}) for parcel in self._planned]

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        """Broadcast what was planned, as rank 0 of a process group."""
        parcels = [_said(parcel) for parcel in self._planned or self.export(bucket_bytes)]
        self._host.call("send", group=dict(group), parcels=parcels)
        self._forget()

    def digests(self) -> Mapping[str, str]:
        """Return the digest of every packed tensor."""
        if self._sent is None:
            found: dict[str, str] = {}
            held = {weight.name: weight for weight in self._inner.weights()}
            made = []
            for parcel in self._inner.export(WHOLE):
                said = self._convert(parcel, self._scheme.sent)
                Path(parcel.address["path"]).unlink()
                found |= said["digests"]
                for name, dtype, shape in zip(said["names"], said["dtypes"], said["shapes"], strict=True):
                    own = held.get(name) or held.get(f"{name.rpartition('.')[0]}.weight")
                    made.append(Weight(name, tuple(shape), dtype, own.own if own else (), own.owners if own else ()))
            self._sent, self._weights = found, tuple(made)
        return self._sent

    def replicas(self) -> tuple[str, ...]:
        """Return the trainer's own names of parameters of which its ranks hold different copies; () is well."""
        return self._inner.replicas()

    def save(self, folder: Path) -> None:
        """Write the checkpoint that the engine is to serve: packed where the engine reads that it is packed."""
        self._write(folder, packed=True)

    def padded(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the same where all are filled up to the longest; see `base.Trainer`."""
        return self._unpacked().padded(sequences, temperature=temperature)

    def full(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary; see `base.Trainer`."""
        return self._unpacked().full(sequences, folder)

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
        """Return tokens drawn from these weights; see `base.Trainer`."""
        return self._unpacked().sample(prompts, number, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)

    def routes(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts that every token went to; see `base.Trainer`."""
        return self._unpacked().routes(tokens)

    def close(self) -> None:
        """End it and all it started; may be called twice."""
        for each in (self._reference, self._inner):
            if each is not None:
                each.close()
        self._host.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _changed(self) -> None:
        self._sent, self._stale = None, True

    def _forget(self) -> None:
        for parcel in self._planned:
            Path(parcel.address["path"]).unlink(missing_ok=True)
        self._planned = []

    def _unpacked(self) -> Trainer:
        """Return transformers with the weights as they come out of the packing."""
        if self._reference is None or self._stale:
            folder = self._folder / "unpacked"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            self._write(folder, packed=False)
            self._reference, self._stale = self._start(folder, self._reference), False
        return self._reference

    def _write(self, folder: Path, *, packed: bool) -> None:
        """Write a checkpoint as the trainer saves it, its weights packed, or packed and unpacked again."""
        self._inner.save(folder)
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        named: dict[str, list[str]] = {}
        for name, file in index.items():
            named.setdefault(file, []).append(name)
        written: dict[str, str] = {}
        total = 0
        for file, names in named.items():
            source = {"plane": "file", "path": str(folder / file), "tensors": len(names), "bytes": 0}
            target = {"plane": "file", "path": str(folder / f"{file}.made")}
            parcel = Parcel(source, tuple(names), (), (), 0)
            out, other = (target, None) if packed else (None, target)
            said = self._convert(parcel, self._scheme.served, packed=out, plain=other)
            (folder / f"{file}.made").replace(folder / file)
            written |= dict.fromkeys(said["names"] if packed else names, file)
            total += said["nbytes"] if packed else said["plain_nbytes"]
        made = {"metadata": {"total_size": total}, "weight_map": written}  # transformers asks for both
        (folder / INDEX).write_text(json.dumps(made), encoding="utf-8")
        if packed:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            config["quantization_config"] = dict(self._scheme.config)
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _convert(
        self,
        parcel: Parcel,
        modules: frozenset[str],
        *,
        packed: Mapping[str, str] | None = None,
        plain: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        inside = [module for module in modules if f"{module}.weight" in set(parcel.names)]
        said: dict[str, Any] = self._host.call(
            "convert", bucket=_said(parcel), modules=inside, packed=packed, plain=plain
        )
        return said


def _said(parcel: Parcel) -> dict[str, Any]:
    return {"address": dict(parcel.address), "names": list(parcel.names)}


def _parcel(said: Mapping[str, Any]) -> Parcel:
    shapes = tuple(tuple(shape) for shape in said["shapes"])
    return Parcel(said["address"], tuple(said["names"]), tuple(said["dtypes"]), shapes, said["nbytes"])
