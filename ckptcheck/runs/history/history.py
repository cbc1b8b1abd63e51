"""The history of syncs: the evidence of rules about what changes from one sync to the next, on either side."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from ckptcheck.consumers.engine_tensors import find_source_tensors
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.runs.history.adapted_modules import find_adapted_module
from ckptcheck.runs.history.joined import join_records, place_gaps
from ckptcheck.runs.history.logged_gap import DRAWN
from ckptcheck.runs.history.record import NO_BYTES, PLAINLY, GapRecord, LoggedStep, SyncRecord, read_record
from ckptcheck.runs.history.tables import history_sections

SMALL = re.compile(r"(norm|bias|scale|layernorm|A_log|\.D$)", re.IGNORECASE)
"""Tensors with a few numbers near 1 or 0: a step may round to nothing in all of them."""
EXPERT = re.compile(r"\.experts\.\d+\.")
RESTING = 3
"""Syncs in a row from which on a matrix has stopped that others of its kind do not."""
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class SyncPair:
    """Two successful syncs of the same run, one after the other."""

    index: int
    """Place of the later sync in the record."""
    before_index: int
    """Place of the earlier sync in the record."""
    before: SyncRecord
    after: SyncRecord

    @property
    def is_step(self) -> bool:
        """Whether the trainer took a step in between: its step rose or, if it counts none, its loss changed."""
        if self.before.step is not None and self.after.step is not None:
            return self.after.step > self.before.step
        return self.before.loss is not None and self.after.loss is not None and self.after.loss != self.before.loss

    @property
    def has_count(self) -> bool:
        """Whether the record tells if the trainer took a step in between."""
        return None not in (self.before.step, self.after.step) or None not in (self.before.loss, self.after.loss)

    @cached_property
    def sent_changed(self) -> frozenset[str]:
        """Names that were sent both times with different values."""
        return _changed_names(self.before.sent, self.after.sent)

    @cached_property
    def sent_unchanged_once_cast(self) -> frozenset[str]:
        """Names whose values are equal both times, or may be, once they are cast to the engine's dtype."""
        return frozenset(name for name, value in self.after.cast.items() if self.before.cast.get(name, value) == value)

    @cached_property
    def held_changed(self) -> frozenset[str]:
        """Tensors (``rank/name``) that the engine held both times with different values."""
        return _changed_names(self.before.held, self.after.held)

    @cached_property
    def unchanged_side(self) -> tuple[str, int] | None:
        """The side without a changed tensor (sent or held), with its number of tensors; None if something changed.

        If the record has both sides, the trainer's counts. The result is None too if the sync sent a part, or a group without a
        matrix: norms and biases may stay as they are for a step.
        """
        if self.after.group and not any(trainable_matrices({*self.after.sent, *self.after.held})):
            return None
        for side, before, after, changed in (
            ("sent", self.before.sent, self.after.sent, self.sent_changed),
            ("held", self.before.held, self.after.held, self.held_changed),
        ):
            if before and after and not (side == "sent" and self.after.partial):
                return (side, len(after)) if not changed and before.keys() == after.keys() else None
        return None


def _pair_syncs(syncs: Iterable[tuple[int, SyncRecord]]) -> tuple[SyncPair, ...]:
    """Return each sync with the one before it that tells most of it, if the same process recorded both.

    That is the last sync of the same names: a draft model, or an adapter beside its base, may have syncs of its own. Without one it
    is the last sync of which one has all names of the other, and then the last one.

    syncs: pairs of a sync's position in the record and the sync.
    """
    pairs: list[SyncPair] = []
    last: dict[tuple[str, str], dict[frozenset[str], tuple[int, SyncRecord]]] = {}
    for index, sync in syncs:
        sets = last.setdefault((sync.group, sync.partial), {})
        names = frozenset(sync.sent)
        known = max((at for each, (at, _) in sets.items() if each >= names or each <= names), default=-1)
        latest = [sets[names]] if names in sets else sorted(sets.values(), key=lambda each: (each[0] == known, each[0]))
        if latest and latest[-1][1].run == sync.run:
            pairs.append(SyncPair(index, *latest[-1], sync))
        sets.pop(names, None)
        sets[names] = (index, sync)
    return tuple(pairs)


def _changed_names(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str]:
    """Return the names that have different digests before and after."""
    return frozenset(name for name, value in after.items() if name in before and before[name] != value)


@dataclass(frozen=True)
class SavedWeights:
    """A checkpoint of the job, which its record is held against."""

    target: str
    identity: str


@dataclass(frozen=True)
class ResponseVersions:
    """The weight versions that responses of the job carry."""

    target: str
    responses: Mapping[str, int]
    """Version → how many responses have tokens of it."""


@dataclass(frozen=True)
class History(EvidenceDefaults):
    """The syncs of a record, in the order in which they were recorded."""

    target: str
    syncs: tuple[SyncRecord, ...]
    damaged_lines: Mapping[int, str] = field(default_factory=dict)
    """Line number → why the line is not a sync."""
    saved: SavedWeights | None = None
    """A checkpoint of the job; None if the user named none."""
    responses: ResponseVersions | None = None
    """The weight versions of the job's responses; None if the user named none."""
    known_gaps: tuple[tuple[str, GapRecord], ...] | None = None
    """Process and gap of all that a job has logged so far, for a watch that has fewer syncs than that; None: those of the syncs."""
    logged: Sequence[LoggedStep] = ()
    """What the job logged of its steps beside the gap, from the first one on."""
    missing: Sequence[tuple[int, SyncRecord]] = ()
    """Rollouts that began without the sync of their step: the place of the last sync before them, and what was recorded."""
    arrived: Mapping[int, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    """Place of a sync → what arrived at each engine, name → digest: where sender and engine kept a record each."""
    kind: str = "history"

    @cached_property
    def gaps(self) -> tuple[tuple[str, GapRecord], ...]:
        """Process and gap, of every gap that the job logged or a probe drew, in their order."""
        if self.known_gaps is not None:
            return self.known_gaps
        found = []
        for sync in self.syncs:
            found += [(sync.run, sync.gap)] if sync.gap is not None else []
            if sync.probe is not None and sync.probe.drawn is not None:
                found.append((sync.run, GapRecord(DRAWN, sync.probe.drawn, sync.step, sync.probe.dtype)))
        return tuple(found)

    @property
    def identities(self) -> Mapping[str, str]:
        """The identities of what the last sync with an identity sent, of what the engine then held, and of the checkpoint."""
        last = next((sync for sync in reversed(self.syncs) if sync.identity is not None), SyncRecord())
        found = {"last sync that was named": last.identity, "engine after it": last.held_identity}
        found["saved checkpoint"] = self.saved.identity if self.saved is not None else None
        return {label: identity for label, identity in found.items() if identity is not None}

    @property
    def subject(self) -> str:
        """One line: how many syncs, over which steps, between which programs."""
        steps = [sync.step for sync in self.syncs if sync.step is not None]
        sides = " → ".join(side for side in (self.syncs[-1].trainer, self.syncs[-1].engine) if side)
        parts = [f"{len(self.syncs)} sync{'s' if len(self.syncs) > 1 else ''}"]
        if steps:
            first, last = min(steps), max(steps)
            parts.append(f"step {first}" if first == last else f"steps {first}–{last}")
        return " · ".join([*parts, sides] if sides else parts)

    @property
    def unread(self) -> Mapping[str, str]:
        """Always empty: a damaged line is a finding."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of syncs, of tensors in the last one, and of bytes in all."""
        last = self.syncs[-1]
        return {
            "files": len(self.syncs),
            "tensors": max(len(last.sent), len(last.held)),
            "bytes": sum(sync.nbytes for sync in self.syncs),
        }

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of the syncs."""
        return history_sections(self)

    @cached_property
    def pairs(self) -> tuple[SyncPair, ...]:
        """Each successful digested sync with the digested sync before it, if the same process recorded both.

        A watch may digest the weights at every n-th sync only; the pairs skip the syncs in between.
        """
        return _pair_syncs((index, sync) for index, sync in enumerate(self.syncs) if sync.ok and sync.is_digested)

    @cached_property
    def version_pairs(self) -> tuple[SyncPair, ...]:
        """Each successful sync with the successful one before it, digested or not, if the same process recorded both."""
        successful = [(index, sync) for index, sync in enumerate(self.syncs) if sync.ok]
        return tuple(
            SyncPair(index, before_index, before, after)
            for (before_index, before), (index, after) in pairwise(successful)
            if before.run == after.run
        )

    @cached_property
    def step_pairs(self) -> tuple[SyncPair, ...]:
        """The pairs with a step in between that can be compared: both have digests of what was sent, or both of the engine."""
        return tuple(
            pair
            for pair in self.pairs
            if pair.is_step and ((pair.before.sent and pair.after.sent) or (pair.before.held and pair.after.held))
        )

    def find_unchanged_side(self, pair: SyncPair) -> tuple[str, int] | None:
        """Return the side without a changed tensor, with its number of tensors; None if something may have changed.

        A job may train a few tensors. An unchanged group of tensors then does not show that the rest is unchanged, so it counts
        only if the other steps changed nearly all matrices in it.
        """
        if self._is_beside_another(pair):
            return None
        if not pair.after.group:
            return pair.unchanged_side
        is_dense = all(3 * total <= 4 * changed for changed, total in self._changed_matrices)
        return pair.unchanged_side if is_dense else None

    def _is_beside_another(self, pair: SyncPair) -> bool:
        """Return whether the sync sent what may stay as it is: an adapter's base, or less than a sync of the step that changed."""
        modules = self.adapted_modules(pair.after.run)
        if modules and not any(find_adapted_module(name) for name in pair.after.sent):
            return True
        return any(
            other.after.run == pair.after.run
            and other.after.step == pair.after.step
            and len(other.after.sent) > len(pair.after.sent)
            and bool(other.sent_changed)
            for other in self.pairs
            if pair.after.step is not None
        )

    def adapted_modules(self, run: str) -> frozenset[str]:
        """Return the modules of which a process sends an adapter."""
        return self._adapted_modules.get(run, frozenset())

    @cached_property
    def _adapted_modules(self) -> Mapping[str, frozenset[str]]:
        modules: dict[str, set[str]] = {}
        for sync in self.syncs:
            modules.setdefault(sync.run, set()).update(filter(None, map(find_adapted_module, sync.sent)))
        return {run: frozenset(found) for run, found in modules.items()}

    @cached_property
    def _changed_matrices(self) -> list[tuple[int, int]]:
        """For each step that changed a matrix: changed matrices, and sent matrices."""
        counts = [
            (len(pair.sent_changed.intersection(matrices)), len(matrices))
            for pair in self.step_pairs
            for matrices in [list(trainable_matrices(pair.after.sent))]
        ]
        return [each for each in counts if each[0]]

    @cached_property
    def changed_names(self) -> frozenset[str]:
        """Names that were sent with other values at some sync than at the one before."""
        return frozenset[str]().union(*(pair.sent_changed for pair in self.pairs))

    @cached_property
    def own_values(self) -> Sequence[Mapping[str, str]]:
        """For each sync, the digests of the trainer's own parameters by name: as they were sent, unless the watch saw otherwise."""
        return [{**sync.sent, **(sync.trained or {})} for sync in self.syncs]

    @cached_property
    def sent_otherwise(self) -> frozenset[str]:
        """Names that were sent at any sync with other values than the trainer's parameter had (HIS025)."""
        return frozenset[str]().union(*(sync.trained or () for sync in self.syncs))

    @cached_property
    def frozen(self) -> frozenset[str]:
        """Names that the trainer does not train, as far as the watch knows."""
        return frozenset[str]().union(*(sync.frozen for sync in self.syncs))

    @cached_property
    def compared_names(self) -> tuple[str, ...]:
        """Names that were sent before and after a step."""
        return tuple(
            dict.fromkeys(name for pair in self.step_pairs for name in pair.after.sent if name in pair.before.sent)
        )

    @cached_property
    def constant_names(self) -> tuple[str, ...]:
        """Names that were sent with the same values at every step."""
        changed = frozenset[str]().union(*(pair.sent_changed for pair in self.step_pairs))
        return tuple(name for name in self.compared_names if name not in changed)

    @cached_property
    def stopped_matrices(self) -> Mapping[str, tuple[int, ...]]:
        """Each matrix that changed at every step, and then at none to the end → the syncs at which it rested.

        Its siblings changed at each of them: a job that trains its layers in turns, or froze a kind, has none such.
        """
        found: dict[str, tuple[int, ...]] = {}
        kinds: dict[str, list[str]] = {}
        for name in sorted(set(trainable_matrices(self.compared_names)) - self.sent_otherwise - self.frozen):
            kinds.setdefault(name_pattern(name), []).append(name)
        for siblings in kinds.values():
            known = {
                name: [pair for pair in self.step_pairs if name in pair.before.sent and name in pair.after.sent]
                for name in siblings
            }
            resting = {name: [pair for pair in known[name] if name not in pair.sent_changed] for name in siblings}
            others = [name for name in siblings if not resting[name]]
            alike = {tuple(pair.index for pair in each) for each in resting.values() if each}
            if 2 * len(others) < len(siblings) or len(alike) != 1:
                continue
            for name, still in resting.items():
                if RESTING <= len(still) <= len(known[name]) - 2 and known[name][-len(still) :] == still:
                    found[name] = tuple(pair.index for pair in still)
        return found

    def count_comparisons(self, name: str) -> int:
        """Return the number of steps at which the record can compare a tensor with the sync before."""
        return sum(name in pair.before.sent and name in pair.after.sent for pair in self.step_pairs)

    @cached_property
    def names_sent(self) -> frozenset[str]:
        """The names that the trainer sends at every digested sync; none if they change from sync to sync, as in deltas."""
        of_group: dict[str, frozenset[str]] = {}
        for sync in self.syncs:
            if sync.ok and sync.sent:
                names = frozenset(sync.sent)
                if of_group.setdefault(sync.group.partition(",")[0], names) != names:
                    return frozenset()
        return frozenset[str]().union(*of_group.values())

    @cached_property
    def stored_as_sent(self) -> frozenset[str]:
        """Tensors (``rank/name``) that the engine held bit for bit as sent, at any sync."""
        return frozenset(key for sync in self.syncs for key in tensors_stored_as_sent(sync))

    def lost_on_the_way(self, index: int) -> frozenset[str]:
        """Return the names that a sync sent and that did not arrive at an engine, or with other values."""
        if not self._compares_arrived:
            return frozenset()
        sent = self.syncs[index].sent
        return frozenset(
            name
            for name, value in sent.items()
            for arrived in self.arrived.get(index, ())
            if arrived.get(name) != value
        )

    @cached_property
    def _compares_arrived(self) -> bool:
        """Whether anything arrived as it was sent: a sender may cast or pack it after the watch has seen it."""
        return any(
            each.get(name) == value
            for index, arrived in self.arrived.items()
            for each in arrived
            for name, value in self.syncs[index].sent.items()
        )

    def stale_tensors(self, pair: SyncPair) -> tuple[str, ...]:
        """Return the engine tensors that did not change, although a tensor they are built from was sent with new values.

        A norm, a bias or a single expert counts only if the engine stores it as sent: an engine that rounds may lose a step in
        it. All experts of a projection together count always. A tensor without bytes was not seen.
        """
        names = pair.after.sent.keys()
        sent_changed = pair.sent_changed - pair.sent_unchanged_once_cast - self.lost_on_the_way(pair.index)
        rounds = any(text.startswith("rounded") for text in pair.after.altered.values())
        changed_experts = {EXPERT.sub(".experts.{}.", key) for key in pair.held_changed if EXPERT.search(key)}
        return tuple(
            key
            for key, value in pair.after.held.items()
            if key in pair.before.held
            and key not in pair.held_changed
            and value not in NO_BYTES
            and (
                not pair.after.altered.get(key, "").startswith(
                    PLAINLY
                )  # HIS008 says it, unless it is the old value itself
                or value == pair.before.sent.get(key.partition("/")[2])
            )
            and sent_changed.intersection(find_source_tensors(key.partition("/")[2], names))
            and (
                (key in self.stored_as_sent and not (rounds and SMALL.search(key)))
                or not (SMALL.search(key) or EXPERT.sub(".experts.{}.", key) in changed_experts)
            )
        )

    def find_older(self, pair: SyncPair) -> dict[int, list[str]]:
        """Return the syncs of which one brings values back, other than the one right before → the matrices that have them."""
        found: dict[int, list[str]] = {}
        for name in trainable_matrices(pair.sent_changed - self.sent_otherwise):
            digest = pair.after.sent[name]
            for index in range(pair.before_index - 1, -1, -1):
                older = self.syncs[index]
                if older.run == pair.after.run and older.sent.get(name) == digest:
                    found.setdefault(index, []).append(name)
                    break
        return found

    def find_late(self, index: int) -> Mapping[str, int]:
        """Return the tensors of which the engine holds what was sent by their own name before, and the sync that sent it."""
        sync = self.syncs[index]
        wrong = {
            name: value
            for place, value in sync.held.items()
            if (name := place.partition("/")[2]) in sync.sent and value not in (sync.sent[name], sync.cast.get(name))
        }
        found: dict[str, int] = {}
        for earlier in range(index - 1, -1, -1) if wrong else ():
            before = self.syncs[earlier]
            if before.run == sync.run and before.ok:
                for name, value in wrong.items():
                    if name not in found and value in (before.sent.get(name), before.cast.get(name)):
                        found[name] = earlier
        return found

    def keep_held(self, names: Collection[str]) -> set[str]:
        """Return the names of the trainer's tensors that the engine has, fused or not; all where the record has none of it."""
        held = {key.partition("/")[2] for sync in self.syncs for key in (*sync.held, *sync.unseen)} if names else ()
        if not held:
            return {*names}
        return {*names} & {part for name in held for part in (name, *find_source_tensors(name, names))}

    @cached_property
    def unseen(self) -> Mapping[str, int]:
        """Tensors of the engine (``rank/name``) that no sync could read → how many syncs tried."""
        seen = frozenset[str]().union(*(sync.held.keys() for sync in self.syncs))
        tried: dict[str, int] = {}
        for sync in self.syncs:
            for key in {*sync.unseen, *(key for key, value in sync.held.items() if value in NO_BYTES)}:
                tried[key] = tried.get(key, 0) + 1
        return {
            key: number for key, number in tried.items() if key not in seen or self.syncs[-1].held.get(key) in NO_BYTES
        }

    def describe_lasting(self, indices: Sequence[int]) -> str:
        """Return the end of a message about several syncs that begins with the label of the first; "" for one."""
        return f"; it shows at {len(indices):,} syncs, last at {self.label(indices[-1])}" if len(indices) > 1 else ""

    def follow(self, found: Iterable[tuple[int, Collection[str]]]) -> list[tuple[list[int], list[str]]]:
        """Return one entry for each cause: the syncs at which it shows, and the names that it concerns.

        found: sync → the names that something is wrong with, of every sync that was looked at, in their order. A cause goes on
        until a sync of its process has its names and nothing is wrong with them; one that looks at other tensors does not end it.
        Further names belong to it if no sync since its first has looked at them, as where a watch looks at groups in turn; else
        they are a cause of their own.
        """
        causes: list[tuple[list[int], list[str]]] = []
        going: dict[str, list[tuple[list[int], list[str]]]] = {}
        looked: dict[str, list[int]] = {}
        for index, names in found:
            run = self.syncs[index].run
            active = [
                cause
                for cause in going.get(run, ())
                if not set(cause[1]).isdisjoint(names) or not any(self._has(index, name) for name in cause[1])
            ]
            for name in names:
                if any(name in known for _, known in active):
                    continue
                for indices, known in active:
                    if not any(self._has(at, name) for at in looked.get(run, ()) if at >= indices[0]):
                        known.append(name)
                        break
                else:
                    if not active or active[-1][0] != [index]:
                        causes.append(([index], []))
                        active.append(causes[-1])
                    active[-1][1].append(name)
            for indices, known in active:
                if indices[-1] != index and not set(known).isdisjoint(names):
                    indices.append(index)
            going[run] = active
            looked.setdefault(run, []).append(index)
        return causes

    def _has(self, index: int, name: str) -> bool:
        """Whether a sync looked at a tensor: a name, or ``rank/name`` of the engine."""
        sync = self.syncs[index]
        return name in sync.sent or name in sync.held or name in self._names_held(index)

    @cached_property
    def _held_names(self) -> dict[int, frozenset[str]]:
        return {}

    def _names_held(self, index: int) -> frozenset[str]:
        """Return the names of what the engine held, without ranks."""
        if index not in self._held_names:
            self._held_names[index] = frozenset(key.partition("/")[2] for key in self.syncs[index].held)
        return self._held_names[index]

    def label(self, index: int) -> str:
        """Return the name of a sync for messages: its step or, without one, its place in the record."""
        sync = self.syncs[index]
        return f"step {sync.step}" if sync.step is not None else f"sync {index + 1}"


def tensors_stored_as_sent(sync: SyncRecord) -> set[str]:
    """Return the tensors that the engine held as sent or, in its own dtype, as cast; none if the sides' digests do not compare."""
    if not sync.alike:
        return set()
    return {
        key
        for key, value in sync.held.items()
        if value in (sync.sent.get(name := key.partition("/")[2]), sync.cast.get(name))
    }


def find_swapped(sync: SyncRecord) -> Mapping[str, str]:
    """Return the tensor whose value the engine holds in place of a tensor's own, by the latter's name, where one alone has it."""
    unequal = {
        name: value
        for place, value in sync.held.items()
        if (name := place.partition("/")[2]) in sync.sent
        and value not in (sync.sent[name], sync.cast.get(name), *NO_BYTES)
        and sync.altered.get(place) != "all zero"  # as others may be
    }
    senders: dict[str, list[str]] = {}
    for name, value in (*sync.sent.items(), *sync.cast.items()) if unequal else ():
        senders.setdefault(value, []).append(name)
    return {name: senders[value][0] for name, value in unequal.items() if len(senders.get(value, ())) == 1}


def drop_rounded(sync: SyncRecord, names: Collection[str]) -> list[str]:
    """Return the names in order; where a side rounds, without norms and biases that round now, and not at another sync."""
    if any(text.startswith("rounded") for text in sync.altered.values()):
        names = [name for name in names if not SMALL.search(name)] or names
    return sorted(names)


def open_history(
    path: Path | str, *, saved: SavedWeights | None = None, responses: ResponseVersions | None = None
) -> History:
    """Read a record, to hold it against a checkpoint and responses. Raises CkptcheckError as `read_record` does."""
    records, damaged = read_record(path)
    return build_history(str(path), records, damaged, saved, responses)


def open_joined_history(
    paths: Sequence[Path | str], *, saved: SavedWeights | None = None, responses: ResponseVersions | None = None
) -> History:
    """Read the records of both sides of one job as one history. Raises CkptcheckError as `read_record` does, for any of them."""
    if len(paths) == 1:
        return open_history(paths[0], saved=saved, responses=responses)
    histories = [open_history(path) for path in paths]
    drivers = [
        each for each in histories if each.gaps and not any(sync.is_digested or sync.payload for sync in each.syncs)
    ]
    sides = [each for each in histories if each not in drivers] or [drivers.pop()]
    syncs, arrived = join_records([each.syncs for each in sides])
    damaged = {line: f"{each.target}: {why}" for each in histories for line, why in each.damaged_lines.items()}
    missing = next((each.missing for each in histories if each.missing), ())
    gaps = place_gaps([gap for each in drivers for gap in each.gaps], syncs) if drivers else None
    logged = next((each.logged for each in histories if each.logged), ())
    target = " + ".join(each.target for each in histories)
    return History(target, tuple(syncs), damaged, saved, responses, gaps, logged, missing, arrived)


def build_history(
    target: str,
    records: Iterable[SyncRecord],
    damaged: Mapping[int, str] | None = None,
    saved: SavedWeights | None = None,
    responses: ResponseVersions | None = None,
    known_gaps: tuple[tuple[str, GapRecord], ...] | None = None,
    logged: Sequence[LoggedStep] | None = None,
) -> History:
    """Return the history of records in their order.

    damaged: line number → why it is none. logged: of a watch, as `known_gaps`; None for what the records have of it, unless they
    lack its beginning.
    """
    syncs: list[SyncRecord] = []
    missing: list[tuple[int, SyncRecord]] = []
    for each in records:
        if each.missing:
            missing.append((len(syncs) - 1, each))
        else:
            syncs.append(each)
    if logged is None:
        has_beginning = bool(syncs) and (syncs[0].step or 0) <= 1
        logged = tuple(sync.logged for sync in syncs if sync.logged is not None and has_beginning)
    return History(target, tuple(syncs), damaged or {}, saved, responses, known_gaps, logged, missing)


def trainable_matrices(names: Collection[str]) -> Iterator[str]:
    """Yield the names of tensors that every step changes unless they are frozen: no norms, biases or single experts.

    An expert that no token was routed to has no gradient, and bf16 may round a step in a norm near 1 to nothing.
    """
    return (name for name in names if not SMALL.search(name) and not EXPERT.search(name))


def name_pattern(name: str) -> str:
    """Return a name with its numbers replaced, which is the same for its siblings in other layers."""
    return NUMBER.sub("{}", name)


def find_unchanged_runs(history: History) -> list[list[SyncPair]]:
    """Return the runs of consecutive steps in which no digest changed."""
    runs: list[list[SyncPair]] = []
    current: list[SyncPair] | None = None
    for pair in history.step_pairs:
        if history.find_unchanged_side(pair) is None:
            current = None
            continue
        if current is None:
            current = []
            runs.append(current)
        current.append(pair)
    return runs
