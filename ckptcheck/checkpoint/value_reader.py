"""The protocol by which a checkpoint reads the values of its tensors, and the reader that reads none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ckptcheck.linter.rule import Skip
from ckptcheck.runners.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptcheck.checkpoint.header import Shard
    from ckptcheck.checkpoint.source import File, Source
    from ckptcheck.checkpoint.tensor import Tensor
    from ckptcheck.values.stats import ValueStats


class HasValues(Protocol):
    """The attributes of a checkpoint that a reader needs."""

    @property
    def source(self) -> Source:
        """The source of its bytes."""
        ...

    @property
    def files(self) -> Mapping[str, File]:
        """All files, by name."""
        ...

    @property
    def tensor_suffixes(self) -> tuple[str, ...]:
        """Suffixes of the files that hold tensors."""
        ...

    @property
    def shards(self) -> Mapping[str, Shard]:
        """File → the tensors in it, with their places."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the loaded files."""
        ...

    @property
    def tensor_to_file(self) -> Mapping[str, str]:
        """Tensor → the loaded file that holds it."""
        ...

    @property
    def vocabulary_tensors(self) -> Mapping[str, tuple[str, ...]]:
        """Embedding and head → the tensors with their rows, which get separate statistics."""
        ...


class ValueReader(Protocol):
    """Reads the values of a checkpoint when a rule first needs them; `values.value_pass.ValuePass` implements it."""

    @property
    def runner(self) -> Runner | None:
        """The runner of passes over all bytes; None: threads of this process."""
        ...

    def unavailable_reason(self, source: Source) -> str | None:
        """Return why the values of this source are not read, as the reason of a skip; None if they are read."""
        ...

    def start(self, ckpt: HasValues) -> None:
        """Begin to read now, in other processes if that helps; the caller has to call `close` at the end."""
        ...

    def read(self, ckpt: HasValues) -> ValueStats:
        """Read all values and return their statistics. Raises Skip if they are not read."""
        ...

    def close(self) -> None:
        """End what `start` began."""
        ...


class UnreadValues:
    """The reader that reads no values: it skips rules about values with its reason."""

    runner = None

    def __init__(self, reason: str = "the values were not read") -> None:
        self._reason = reason

    def unavailable_reason(self, source: Source) -> str:
        """Return the reason."""
        return self._reason

    def start(self, ckpt: HasValues) -> None:
        """Do nothing."""

    def read(self, ckpt: HasValues) -> ValueStats:
        """Raise Skip."""
        raise Skip(self._reason)

    def close(self) -> None:
        """Do nothing."""
