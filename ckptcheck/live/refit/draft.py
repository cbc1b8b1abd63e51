"""Drafts, which no trainer of ckptcheck holds: their weights, and how many of their tokens an engine accepts.

A draft is layers for multi-token prediction, or a model of its own. Cold loads get it from here. Where the trial sends the draft
too, each step moves it and each sync brings it to the engine in a session of its own, as a job does that trains its draft: vLLM's
start_draft_weight_update, SGLang's selector draft.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.files_beside import copy_files_beside
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.base import Bucket, Engine, UpdateResult
from ckptcheck.live.runtime.engines.capabilities import find_able
from ckptcheck.live.runtime.trainers.remote import BYTES, INDEX, NAMES
from ckptcheck.live.runtime.trainers.spawn import BUFFERS
from ckptcheck.live.runtime.worker.ckptcheck_worker.buckets import split_into_buckets
from ckptcheck.text.file_io import read_json_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

FILE = "not-trained.safetensors"
"""The file of a saved checkpoint with the tensors that the trainer does not hold."""
FOLDER = "draft"
"""The folder of a draft model of its own, within that of a saved checkpoint."""
SCALE = 0.01
"""Scale of the noise by which a step moves a draft that is sent, where the trainer takes an optimizer step."""

FEWEST_GAINED = 0.2
"""Tokens that a draft model gains in a step at least; below that it guesses nothing that could get worse."""
KEPT_SHARE = 0.8
"""Share of the gain that may be left without a finding."""
ACCEPTED_TOKENS = 32
"""Tokens decoded from each prompt to measure an acceptance length."""

Stored = tuple[str, tuple[int, ...], bytes]
"""dtype as safetensors spells it, shape, bytes in row-major order."""


@dataclass(frozen=True)
class Acceptance:
    """Tokens that the engine gains in a decode step, over the same prompts: 1 where it accepts no token of the draft model."""

    after_sync: int
    """Number of the sync before it, 0 for the first cold load."""
    engine: float
    cold: float
    """Of the same engine, started cold from the same weights."""


class DraftWeights:
    """What a trial holds of a draft.

    Args:
        source: the checkpoint that has it.
        is_own_model: whether it is a draft model of its own; else its layers belong to the policy's checkpoint.
        dtype: what the trial computes in, as torch spells it; a draft that is sent is converted to it, as trainers convert theirs.
        exchange: folder for the files that an engine's worker reads; None where nothing is sent.

    """

    def __init__(
        self, source: Checkpoint, *, is_own_model: bool, dtype: str = "float32", exchange: Path | None = None
    ) -> None:
        self.source, self.is_own_model, self.is_sent = source, is_own_model, exchange is not None
        self._dtype, self._exchange, self._exports = NAMES[dtype], exchange, 0
        self._values: dict[str, NDArray[Any]] = {}
        self._names: tuple[str, ...] = tuple(source.tensors) if is_own_model else ()

    @property
    def names(self) -> tuple[str, ...]:
        """Its tensors."""
        return self._names

    def hold(self, names: Sequence[str]) -> None:
        """Hold these tensors of the source: those that the trainer does not export. A draft model of its own is held whole."""
        if not self.is_own_model:
            self._names = tuple(names)
        if self.is_sent:
            self._values = {name: _read_float32(self.source, name) for name in self._names}
            if not self._values:
                raise CkptcheckError(
                    "--set send-draft=on has nothing to send: the trainer exports all that the engine drafts with",
                    "leave it out",
                )

    def step(self, scale: float | None, seed: int) -> None:
        """Move a draft that is sent: multiply each value by 1 + scale x noise. Does nothing for one that is not."""
        import numpy as np

        draw = np.random.default_rng(seed)
        for name, values in self._values.items():
            noise = draw.standard_normal(values.shape, dtype=np.float32)
            self._values[name] = values * (1 + np.float32(scale or SCALE) * noise)

    def send(self, engine: Engine, bucket_bytes: int, transport: str) -> UpdateResult | None:
        """Send a draft that is sent at all, in a session of its own; return the engine's answer."""
        if not self.is_sent:
            return None
        able = find_able(engine, "draft updates")
        assert able is not None  # feasibility.require_draft_update
        buckets = self._export(bucket_bytes)
        try:
            return able.update_draft(buckets, transport)
        finally:
            for bucket in buckets:
                Path(bucket.address["path"]).unlink(missing_ok=True)

    def save(self, folder: Path) -> None:
        """Add the draft to a checkpoint that a trainer saved: its tensors, or the folder of a draft model of its own."""
        if not self.is_own_model:
            if self._names:
                write_tensors(folder / FILE, self._stored(self._names))
                index = read_json_file(folder / INDEX)
                index["weight_map"] |= dict.fromkeys(self._names, FILE)
                (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
        elif self.is_sent and self.source.source.local is not None:
            own = folder / FOLDER
            own.mkdir()
            write_tensors(own / "model.safetensors", self._stored(self._names))
            copy_files_beside(self.source.source.local, own, lambda name: not name.endswith(".index.json"))

    def _export(self, bucket_bytes: int) -> list[Bucket]:
        assert self._exchange is not None
        self._exports += 1
        names = list(self._names)
        sizes = [self._values[name].size * BYTES[self._dtype] for name in names]
        buckets = []
        for number, indices in enumerate(split_into_buckets(sizes, bucket_bytes)):
            chosen = [names[index] for index in indices]
            path = self._exchange / f"draft-{self._exports}-{number}.safetensors"
            write_tensors(path, self._stored(chosen))
            nbytes = sum(sizes[index] for index in indices)
            address = {"kind": "file", "path": str(path), "tensors": len(chosen), "bytes": nbytes}
            shapes = tuple(self._values[name].shape for name in chosen)
            buckets.append(Bucket(address, tuple(chosen), (self._dtype,) * len(chosen), shapes, nbytes))
        return buckets

    def _stored(self, names: Iterable[str]) -> dict[str, Stored]:
        """Return tensors as they are saved: as the source has them, or as they are sent."""
        if not self.is_sent:
            return {name: _read_stored(self.source, name) for name in names}
        return {
            name: (self._dtype, self._values[name].shape, _encode(self._values[name], self._dtype)) for name in names
        }


def measure_acceptance(engine: Engine, prompts: Sequence[Sequence[int]]) -> float | None:
    """Return the acceptance length; None for an engine without a draft model."""
    able = find_able(engine, "draft acceptance")
    return None if able is None else able.acceptance_length(prompts, ACCEPTED_TOKENS)


def find_untrained(source: Checkpoint, exported: Collection[str]) -> tuple[str, ...]:
    """Return the source's tensors that a trainer does not export, as layers for multi-token prediction; a tied head is none."""
    is_tied = source.config is not None and source.config.get("tie_word_embeddings") is True
    return tuple(
        name
        for name in source.tensors
        if name not in exported and not name.endswith(BUFFERS) and not (is_tied and name == "lm_head.weight")
    )


def find_draft_folder(checkpoint: Path) -> str | None:
    """Return the folder of the draft model that a trial saved beside the policy, None without one."""
    own = checkpoint / FOLDER
    return str(own) if (own / "config.json").is_file() else None


def write_tensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Write a safetensors file."""
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    # transformers only loads files whose metadata names the format
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(b"".join((len(head).to_bytes(8, "little"), head, *(data for *_, data in tensors.values()))))


def _read_stored(ckpt: Checkpoint, name: str) -> Stored:
    tensor, file = ckpt.tensors[name], ckpt.tensor_to_file[name]
    begin = ckpt.shards[file].locate(name)
    return tensor.dtype, tuple(tensor.shape), ckpt.source.read(file, begin, tensor.nbytes)


def _read_float32(ckpt: Checkpoint, name: str) -> NDArray[Any]:
    import numpy as np

    from ckptcheck.values.dtypes import FORMATS, decode

    dtype, shape, data = _read_stored(ckpt, name)
    if dtype not in ("F32", "BF16", "F16"):
        raise CkptcheckError(f"--set send-draft=on cannot send {name}, which is stored in {dtype}", "leave it out")
    patterns = np.frombuffer(data, FORMATS[dtype].unsigned)
    assert len(patterns) == prod(shape)
    values: NDArray[Any] = decode(dtype, patterns).astype(np.float32).reshape(shape)
    return values


def _encode(values: NDArray[Any], dtype: str) -> bytes:
    import numpy as np

    from ckptcheck.compare.matching.cast import cast_patterns

    patterns = np.ascontiguousarray(values, "<f4").view("<u4")
    return cast_patterns(patterns, "F32", dtype).tobytes()
