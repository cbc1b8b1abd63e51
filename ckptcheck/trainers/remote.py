"""A trainer in a process of its own: what is the same for every one of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from ckptcheck.engines.activations import Activations, assembled
from ckptcheck.engines.base import Parcel
from ckptcheck.host.exchange import Exchange
from ckptcheck.host.far.ckptcheck_far.buckets import fill
from ckptcheck.host.host import Host
from ckptcheck.trainers.base import Step, TrainerInfo, Weight

BYTES = {"F32": 4, "BF16": 2}
NAMES = {"float32": "F32", "bfloat16": "BF16"}
"""torch's name of a dtype → that of safetensors."""
RATES = {"float32": 1e-4, "bfloat16": 5e-3}
"""Learning rates. In bfloat16 a number below 2 has to move by 0.004 to become another."""
SHARD = 1 << 30
"""Bytes of one file of a saved checkpoint."""
INDEX = "model.safetensors.index.json"
OWN = ("config.json", INDEX)
BESIDE = (".json", ".jinja", ".txt", ".model")
"""Endings of the files of a tokenizer."""


class RemoteTrainer:
    """A trainer behind a host; see `base.Trainer`. Made by `start_megatron` and `start_transformers`.

    exchange: the plane on which exported weights lie; the caller's. source: where config and tokenizer lie, or None.
    config: what config.json of a saved checkpoint says. timeout: seconds for any one call, None for no limit; may be set
    at any time.
    """

    def __init__(
        self,
        host: Host,
        info: TrainerInfo,
        weights: Sequence[Weight],
        *,
        exchange: Exchange,
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
        """Return what it exports, in the order in which it exports."""
        return self._weights

    def score(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the logprob of each token after the first."""
        found = self._ask("score", sequences=_lists(sequences), temperature=temperature)
        return [tuple(values) for values in found]

    def padded(self, sequences: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[tuple[float, ...]]:
        """Return the same where all are filled up to the longest: Megatron's microbatches are, transformers takes them at once."""
        found = self._ask("padded", sequences=_lists(sequences), temperature=temperature)
        return [tuple(values) for values in found]

    def full(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file."""
        path = folder.resolve() / "full-trainer.safetensors"
        self._ask("full", sequences=_lists(sequences), path=str(path))
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
        """Return tokens drawn from the model; temperature 0: the likeliest. top_p 1, top_k 0: off."""
        found = self._ask(
            "sample",
            prompts=_lists(prompts),
            number=number,
            temperature=temperature,
            seed=seed,
            top_p=top_p,
            top_k=top_k,
        )
        return [tuple(tokens) for tokens in found]

    def routes(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """Return the experts that every token goes to: layers, tokens, choices; [] where it cannot be told."""
        found: list[list[list[int]]] = self._ask("routes", sequence=list(tokens))
        return found

    def activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return what every module gives out for a prompt, over all ranks."""
        path = folder.resolve() / "trainer"
        return assembled(self._ask("capture", tokens=list(map(int, tokens)), path=str(path)), len(tokens))

    def greedy(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        """Return the tokens that greedy decoding adds."""
        return tuple(self._ask("greedy", tokens=list(tokens), number=number))

    def step(self, sequences: Sequence[Sequence[int]], *, seed: int = 0, rate: float | None = None) -> Step:
        """Take a step of Adam at this learning rate (1e-4 in float32, 5e-3 in bfloat16)."""
        rate = RATES[self.info.dtype] if rate is None else rate
        done = self._ask("step", sequences=_lists(sequences), seed=seed, rate=rate)
        scores = tuple(tuple(values) for values in done["scores"])
        number = sum(map(len, scores))
        loss = -sum(map(sum, scores)) / number if number else 0.0
        return Step(loss, done["grad_norm"], scores, tuple(done["unchanged"]))

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        """Multiply every weight by 1 + scale × noise, the same whatever the layout."""
        self._ask("perturb", scale=scale, seed=seed)

    def export(self, bucket_bytes: int) -> list[Parcel]:
        """Put all weights on the plane in buckets of at most this many bytes (one weight may be larger)."""
        plan = self.plan(bucket_bytes)
        self._exports += 1
        addresses = [self._exchange.address(f"weights-{self._exports}-{number}") for number in range(len(plan))]
        return self._put(plan, addresses)

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        """Broadcast all weights as rank 0 of a process group (ckptcheck_far/communicator.py), in the order of `plan`.

        bucket_bytes: weights go one by one, so buckets only matter to the engine that receives them.
        """
        self._ask("send", group=dict(group))

    def unique_id(self) -> str:
        """Return the id of an NCCL group of which the trainer will be rank 0 (base64). Raises VerbError on a CPU."""
        return str(self._ask("unique_id"))

    def lend(self, bucket_bytes: int, gpus: Sequence[str]) -> list[Parcel]:
        """Let engines on these GPUs open the memory of all weights (ckptcheck_far/ipc.py), until `reclaim`.

        A weight that lies on none of them, or is put together of several ranks' parts, is copied there. Raises VerbError on a CPU,
        and for a GPU that the trainer does not see.
        """
        said = iter(self._ask("lend", gpus=list(gpus)))
        return [
            replace(parcel, address={"plane": "ipc", "lent": [next(said) for _ in parcel.names]})
            for parcel in self.plan(bucket_bytes)
        ]

    def reclaim(self) -> None:
        """Take back what is lent; nothing happens where nothing is."""
        self._ask("reclaim")

    def plan(self, bucket_bytes: int) -> list[Parcel]:
        """Return the buckets that `send` would send, with no address."""
        sizes = [prod(weight.shape) * BYTES[weight.dtype] for weight in self._weights]
        parcels = []
        for bucket in fill(sizes, bucket_bytes):
            held = [self._weights[number] for number in bucket]
            parcels.append(
                Parcel(
                    {},
                    tuple(weight.name for weight in held),
                    tuple(weight.dtype for weight in held),
                    tuple(weight.shape for weight in held),
                    sum(sizes[number] for number in bucket),
                )
            )
        return parcels

    def digests(self) -> Mapping[str, str]:
        """Return the digest of every exported weight, computed on the trainer's device; as an engine's `Entry.digest`."""
        found: Mapping[str, str] = self._ask("digests")
        return found

    def replicas(self) -> tuple[str, ...]:
        """Return the trainer's own names of parameters of which its ranks hold different copies; () is well."""
        return tuple(self._ask("replicas"))

    def save(self, folder: Path) -> None:
        """Write the weights as a Hugging Face checkpoint that an engine can load, config and tokenizer copied."""
        folder.mkdir(parents=True, exist_ok=True)
        plan = self.plan(SHARD)
        files = [f"model-{number + 1:05d}-of-{len(plan):05d}" for number in range(len(plan))]
        self._put(plan, [{"plane": "file", "path": str(folder / f"{file}.safetensors")} for file in files])
        index = {name: f"{file}.safetensors" for file, parcel in zip(files, plan, strict=True) for name in parcel.names}
        total = sum(parcel.nbytes for parcel in plan)
        _write(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": index})
        _write(folder / "config.json", {**self._config, "dtype": self.info.dtype})
        for path in sorted(self._source.iterdir()) if self._source else []:
            if path.suffix in BESIDE and path.name not in OWN and path.is_file():
                shutil.copyfile(path, folder / path.name)

    def checkpoint(self, folder: Path) -> None:
        """Write a torch_dist checkpoint by Megatron's own saver. Raises VerbError for a trainer that has none."""
        folder.mkdir(parents=True, exist_ok=True)
        self._ask("checkpoint", folder=str(folder.absolute()))

    def close(self) -> None:
        """End it and all it started; may be called twice."""
        self.host.close()

    def _put(self, plan: Sequence[Parcel], addresses: Sequence[Mapping[str, str]]) -> list[Parcel]:
        parcels = self._ask("export", buckets=_ranges(plan), addresses=[dict(address) for address in addresses])
        return [
            Parcel(address, parcel.names, parcel.dtypes, parcel.shapes, parcel.nbytes)
            for address, parcel in zip(parcels, plan, strict=True)
        ]

    def _ask(self, verb: str, **arguments: Any) -> Any:
        return self.host.call(verb, timeout=self.timeout, **arguments)


def _lists(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(sequence) for sequence in sequences]


def _ranges(plan: Sequence[Parcel]) -> list[list[int]]:
    """Return [begin, end) of the exported weights in each bucket."""
    found, begin = [], 0
    for parcel in plan:
        found.append([begin, begin + len(parcel.names)])
        begin += len(parcel.names)
    return found


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
