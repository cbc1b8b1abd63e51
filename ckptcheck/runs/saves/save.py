"""What is kept of one save: digests and samples of its tensors, its counters, its files. It can be kept in a file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

LAST_STEP = 10**15 - 1
"""The largest step that a folder's name can say (`find_saves.STEP`)."""
MOMENT = re.compile(r"(^|[._/])((max_)?exp_avg(_sq)?|momentum_buffer|exp_inf)([._/]|$)")
"""The name of an optimizer's moment: Adam, AMSGrad, SGD with momentum."""
STEP_COUNTERS = {
    "iter": re.compile(r"(^|/)(common\.pt|model_optim_rng\.pt): iteration$"),
    "checkpoint": re.compile(r"(^|/)trainer_state\.json: global_step$"),
}
"""What a folder's name calls its step → the counter that is the same number, as the trainers with such folders write it."""


NO_WEIGHTS = "none of its files holds weights, neither safetensors nor torch.save files that can be read"
"""The defect of a save that is whole otherwise: the weights may lie in another folder of the same step."""


class TensorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor of a save."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    """32 hexadecimal digits: `ckptcheck.values.shard_digest`."""
    file: str = ""
    """The file that holds it, or the first of them."""
    sample: bytes = b""
    """A sample of its elements as float32 in little-endian order; b"" without a sample."""
    zero: bool = False
    """Whether every byte is zero."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def content(self) -> tuple[str, tuple[int, ...], str]:
        """A key that is equal for equal tensors: dtype, shape, digest."""
        return self.dtype, self.shape, self.digest


class FileRecord(msgspec.Struct, frozen=True):
    """The content of one file of a save."""

    digest: str
    """Digest of the parts of tensors in it, independent of their order in the file."""
    tensors: int
    """Number of tensors that it holds, whole or in part."""


class UnlikeCopy(msgspec.Struct, frozen=True):
    """Two files of ranks that should hold the same parts of tensors, and do not."""

    file: str
    of: str
    """The file of the rank that comes first."""
    tensors: tuple[str, ...]
    """The tensors whose parts differ."""


class Save(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One part of a save, as it was read. Digests are {} where `defects` say why."""

    address: str
    """The folder, or its address in an object store."""
    name: str
    """Its name in a report."""
    strand: str
    """Saves with the same strand are compared with each other."""
    number: Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]
    """The step in the folder's name."""
    word: str = ""
    """The word for the step in the folder's name."""
    form: str = ""
    """How it is stored."""
    files: dict[str, int] = {}
    """File → bytes."""
    identity: str = ""
    """The name of the set of weights (`ckptcheck identity`); "" where it has none."""
    naming: str = ""
    """The naming scheme of the weights: Hugging Face's, Megatron's, or that of the files."""
    weights: dict[str, TensorRecord] = {}
    states: dict[str, TensorRecord] = {}
    """The optimizer's tensors: moments, and master weights."""
    parts: dict[str, FileRecord] = {}
    """File → what it holds of the weights and of the states."""
    unlike_copies: list[UnlikeCopy] = []
    counters: dict[str, float] = {}
    """``file: path`` → a count of steps or samples."""
    rates: dict[str, float] = {}
    """``file: path`` → a learning rate at the time of the save."""
    logged_rates: dict[str, float] = {}
    """Step → the learning rate that the trainer's log has for it."""
    config: dict[str, str] = {}
    """Setting of the model → its value as JSON."""
    defects: list[str] = []
    """Why the save is not whole."""
    nbytes: int = 0
    """Bytes of the tensors that were digested."""

    @property
    def is_one_file(self) -> bool:
        """Whether it is a file of Lightning's, whose keys are what other trainers have files for."""
        return self.name.rpartition("/")[2] in self.files

    @property
    def is_digested(self) -> bool:
        """Whether its weights were digested."""
        return bool(self.weights)

    @property
    def moments(self) -> dict[str, TensorRecord]:
        """Name → tensor of the optimizer, for its moments."""
        return {name: state for name, state in self.states.items() if MOMENT.search(name)}


def digest_records(records: Mapping[str, TensorRecord]) -> str:
    """Return a digest that is equal for equal sets of tensors."""
    state = hashlib.blake2b(digest_size=16)
    for name, record in sorted(records.items()):
        state.update(json.dumps([name, *record.content]).encode())
    return state.hexdigest()


def find_step_counter(save: Save) -> tuple[str, float] | None:
    """Return the counter that a trainer takes for the step of a save, and its number; None where it has none."""
    pattern = STEP_COUNTERS.get(save.word)
    if pattern is None:
        return None
    return next(((path, value) for path, value in save.counters.items() if pattern.search(path)), None)


def is_rate_zero(before: Save, after: Save) -> bool:
    """Whether the learning rate is known to have been zero from one save to the other."""
    logged = [rate for step, rate in after.logged_rates.items() if before.number < int(step) <= after.number]
    if logged:
        return not any(logged)
    rates = [*before.rates.values(), *after.rates.values()]
    return bool(before.rates and after.rates) and not any(rates)
