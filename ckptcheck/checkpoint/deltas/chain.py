"""A chain of deltas on its base: which versions follow each other, and what each delta does to each tensor."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.deltas.delta import Delta, Span
from ckptcheck.checkpoint.source import Source
from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Skip, SkipForDamage
from ckptcheck.text.formatting import join_truncated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.deltas.apply import Effect


class BaseTensor(msgspec.Struct, frozen=True):
    """A tensor of the base."""

    dtype: str
    shape: tuple[int, ...]
    span: Span


class Outcome(msgspec.Struct, frozen=True):
    """The result of one delta for one tensor."""

    effect: Effect | None = None
    """What the changes did; None where they could not be applied."""
    broken: str = ""
    """The kind of `apply.BrokenChange`; "" where the changes could be applied."""
    reason: str = ""
    """Why they could not be applied, or why the checksum was not compared."""
    checksum: str = ""
    """``equal``, ``different``, ``unread`` if none was computed; "" if the delta carries none for the tensor."""
    was_there: bool = False
    """Whether the tensor has this checksum before the delta, but not after it."""


class UnappliedDelta(OSError):
    """A tensor has no value, because a delta of it could not be applied."""


class Break(msgspec.Struct, frozen=True):
    """A delta that is not for the version before it."""

    at: int
    """The number of the delta in the chain."""
    before: str
    """The version before it."""


class DeltaChain:
    """A base, and the deltas that are applied to it in this order."""

    def __init__(
        self,
        target: str,
        deltas: tuple[Delta, ...],
        *,
        base: Source | None = None,
        base_target: str = "",
        base_version: str | None = None,
        tensors: Mapping[str, BaseTensor] | None = None,
        unfit: Mapping[str, str] | None = None,
        notes: tuple[str, ...] = (),
        jobs: int = 1,
    ) -> None:
        """Describe a chain; nothing is applied yet.

        Args:
            target: what the user named.
            deltas: in the order in which they are applied.
            base: the checkpoint that they are applied to; None where only the deltas are there.
            base_target: what the user named as the base.
            base_version: the version of the base, where it says one.
            tensors: the base's tensors, by name.
            unfit: further tensors of the base → why their values cannot be read, as `Shard.unfit` has them.
            notes: what was decided on the way, as sentences.
            jobs: tensors that are applied at a time.

        """
        self.target = target
        self.deltas = deltas
        self.base = base
        self.base_target = base_target
        self.base_version = base_version
        self.tensors = tensors or {}
        self.unfit = unfit or {}
        self.notes = notes
        self.jobs = jobs
        self._outcomes: dict[tuple[int, str], Outcome] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_outcomes": {}}

    @property
    def is_known(self) -> bool:
        """Whether the format of every delta is known, so that the chain has a result."""
        return all(delta.is_known for delta in self.deltas)

    @cached_property
    def changed_names(self) -> frozenset[str]:
        """The tensors that a delta names."""
        return frozenset(name for delta in self.deltas for name in delta.changes)

    @cached_property
    def breaks(self) -> tuple[Break, ...]:
        """The deltas whose base version differs from the version before them. Deltas without versions never break."""
        found, version = [], self.base_version
        for at, delta in enumerate(self.deltas):
            if version is not None and delta.base_version is not None and delta.base_version != version:
                found.append(Break(at, version))
            version = delta.version
        return tuple(found)

    @cached_property
    def sorted_deltas(self) -> tuple[Delta, ...] | None:
        """The deltas in the order of their versions; None if the versions form no chain."""
        by_base = {delta.base_version: delta for delta in self.deltas}
        versions = {delta.version for delta in self.deltas}
        starts = [delta for delta in self.deltas if delta.base_version not in versions]
        if len(starts) != 1 or len(by_base) != len(self.deltas) or None in by_base or None in versions:
            return None
        order = [starts[0]]
        while (following := by_base.get(order[-1].version)) is not None and len(order) < len(self.deltas):
            order.append(following)
        is_on_base = self.base_version in (None, starts[0].base_version)
        return tuple(order) if len(order) == len(self.deltas) and is_on_base else None

    @cached_property
    def outcomes(self) -> Mapping[tuple[int, str], Outcome]:
        """(number of the delta, tensor) → its outcome, for tensors of the base. Applies the deltas on first use."""
        if not self.can_be_applied:
            return {}
        names = [name for name in sorted(self.changed_names & self.tensors.keys()) if not self._is_applied(name)]
        with ThreadPoolExecutor(self.jobs) as pool:
            for _ in pool.map(self._examine, names):
                pass
        return dict(sorted(self._outcomes.items()))

    @property
    def can_be_applied(self) -> bool:
        """Whether the base is there and every format is known."""
        return self.base is not None and self.is_known

    def list_outcomes(self, at: int) -> dict[str, Outcome]:
        """Return tensor → its outcome in one delta."""
        return {name: outcome for (number, name), outcome in self.outcomes.items() if number == at}

    @cached_property
    def is_on_wrong_base(self) -> bool:
        """Whether most tensors of the first delta, and at least two, differ after it from the checksums that it records."""
        checksums = [outcome.checksum for outcome in self.list_outcomes(0).values()]
        different = checksums.count("different")
        return different > 1 and different > checksums.count("equal")

    def _is_applied(self, name: str) -> bool:
        return all((at, name) in self._outcomes for at, delta in enumerate(self.deltas) if name in delta.changes)

    def _examine(self, name: str) -> None:
        try:
            self.compute_tensor(name)
        except OSError as error:
            reason = error.strerror or str(error)
            for at, delta in enumerate(self.deltas):
                if name in delta.changes:
                    self._outcomes.setdefault((at, name), Outcome(broken="unread", reason=reason))

    def compute_tensor(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor after the last delta, in row-major order, and note what each delta did to it.

        Raises UnappliedDelta where a delta cannot be applied, OSError where a file cannot be read.
        """
        import numpy as np

        from ckptcheck.checkpoint.deltas.apply import BrokenChange

        assert self.base is not None
        tensor = self.tensors[name]
        raw = self.base.read(tensor.span.file, tensor.span.begin, tensor.span.nbytes)
        if len(raw) < tensor.span.nbytes:
            raise OSError(f"{tensor.span.file} ends before {name} does")
        state = np.frombuffer(bytearray(raw), np.uint8)
        for at, delta in enumerate(self.deltas):
            if name not in delta.changes:
                continue
            if not delta.is_known:
                raise UnappliedDelta(f"{delta.name} could not be applied: its format is not known")
            try:
                self._outcomes[at, name] = self._apply(delta, name, state, raw if at == 0 else None)
            except BrokenChange as error:
                self._outcomes[at, name] = Outcome(broken=error.kind, reason=error.text)
                raise UnappliedDelta(f"{delta.name} could not be applied: {error.text}") from error
        return state

    def _apply(self, delta: Delta, name: str, state: NDArray[np.uint8], before: bytes | None) -> Outcome:
        from ckptcheck.checkpoint.deltas.apply import Effect, apply_change

        tensor, total = self.tensors[name], Effect()
        for change in delta.changes[name]:
            effect = apply_change(delta, change, state, tensor.dtype, tensor.shape)
            for field_name in vars(total):
                setattr(total, field_name, getattr(total, field_name) + getattr(effect, field_name))
        if delta.checksum_format is None:
            return Outcome(total)
        if (expected := delta.checksums.get(name)) is None:
            return Outcome(total)
        try:
            found = _compute_checksum(delta.checksum_format, state)
        except ImportError:
            reason = f"{delta.checksum_format} needs a package: pip install zstandard blake3"
            return Outcome(total, checksum="unread", reason=reason)
        if found == expected:
            return Outcome(total, checksum="equal")
        was_there = before is not None and _compute_checksum(delta.checksum_format, before) == expected
        return Outcome(total, checksum="different", was_there=was_there)


def _compute_checksum(algorithm: str, data: Any) -> str:
    """Return a checksum in hexadecimal digits. Raises ImportError if its package is not installed."""
    if algorithm == "adler32":
        return f"{zlib.adler32(data):08x}"
    if algorithm == "blake3":
        import blake3

        digest: str = blake3.blake3(data).hexdigest()
        return digest
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def tabulate_chain(chain: DeltaChain) -> Section:
    """Return a table with a row for each delta. Applies the chain where it can be applied."""
    rows = []
    for at, delta in enumerate(chain.deltas):
        effects = [outcome.effect for outcome in chain.list_outcomes(at).values() if outcome.effect is not None]
        changed = sum(effect.elements for effect in effects) if effects else None
        rows.append(
            (delta.name, delta.writer, delta.base_version, delta.version, len(delta.changes), changed, delta.nbytes)
        )
    columns = ("delta", "format of", "from", "to", "tensors", "changed elements", "bytes")
    return Section(f"Deltas on {chain.base_target or 'no base'}", columns, tuple(rows), chain.notes)


def are_applied(chains: Sequence[DeltaChain]) -> bool:
    """Whether a chain has a base and known formats, so that its deltas can be applied."""
    return any(chain.can_be_applied for chain in chains)


def select_outcomes(
    chains: Sequence[DeltaChain], accepts: Callable[[Outcome], object]
) -> Iterator[tuple[Delta, dict[str, Outcome]]]:
    """Yield each delta that has tensors with an accepted outcome, with these tensors."""
    for chain in chains:
        for at, delta in enumerate(chain.deltas):
            found = {name: outcome for name, outcome in chain.list_outcomes(at).items() if accepts(outcome)}
            if found:
                yield delta, found


def require_outcomes(chains: Sequence[DeltaChain]) -> None:
    """Skip a rule, after it has checked what it could, if some changes need a package, or a tensor that the base lost."""
    for chain in chains:
        if unfit := [name for name in chain.unfit if name in chain.changed_names]:
            raise SkipForDamage(f"could not apply the deltas to {join_truncated(unfit)}: {chain.unfit[unfit[0]]}")
    for _, found in select_outcomes(chains, lambda outcome: outcome.broken == "package"):
        raise Skip(next(iter(found.values())).reason)
