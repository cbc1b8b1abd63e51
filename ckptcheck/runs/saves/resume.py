"""From which saves of a run its trainer can resume, and what the others lack: as its code says, and as its other saves show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ckptcheck.linter.rule import Severity
from ckptcheck.runs.saves.find_saves import read_step, replace_steps
from ckptcheck.runs.saves.rank_shards import OF_RANKS
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.save_writers import ResumePart, SaveWriter, list_save_writers, match_from_folder

STATE = re.compile(
    r"(optim|sched|rng|random_states|trainer_state|extra_state|scaler|train_state|training_info|(^|/)common\.pt)",
    re.IGNORECASE,
)
"""Names of files of the training state, whoever writes them."""


class Lack(NamedTuple):
    """Something that a save lacks."""

    name: str
    writer: SaveWriter | None
    """Whose code needs it; None where only the other saves show it."""
    part: ResumePart | None
    is_of_state: bool = True
    """Whether its name is that of a training state."""

    @property
    def severity(self) -> Severity:
        """How grave it is to resume without it."""
        return self.part.severity if self.part is not None else "error" if self.is_of_state else "warning"


class StepFolder(NamedTuple):
    """The folder of one step, with all files below it."""

    name: str
    number: int
    paths: frozenset[str]
    """Paths below the folder."""
    read: frozenset[str]
    """Those that are no links out of a save, as far as is known."""


def list_step_folders(
    saves: Iterable[Save], listings: Mapping[str, Iterable[str]], outside: Mapping[int, Iterable[str]]
) -> dict[str, list[StepFolder]]:
    """Return the folders of steps by their path with ``*`` in place of the step, those that hold a save, oldest first.

    Where steps lie within steps (``checkpoint-10/global_step10``), the outer ones count, unless there is but one of them.

    listings: folder of a step → all files below it, where the folder was searched. outside: step → its files in other folders.
    """
    saves = list(saves)
    steps: dict[str, set[int]] = {}
    for save in saves:
        for kind, number, _ in _split_at_steps(save.name):
            steps.setdefault(kind, set()).add(number)
    paths: dict[tuple[str, int, str], set[str]] = {}
    parts: set[str] = set()
    for save in saves:
        candidates = list(_split_at_steps(save.name))
        if not candidates:
            continue
        kind, number, name = next((each for each in candidates if len(steps[each[0]]) > 1), candidates[-1])
        rest = save.name[len(name) + 1 :]
        parts.add(_drop_steps(f"{rest}/") if rest else "")
        held = paths.setdefault((kind, number, name), set())
        held.update(_drop_steps(f"{rest}/{file}" if rest else file) for file in save.files)
    folders: dict[str, list[StepFolder]] = {}
    for (kind, number, name), held in sorted(paths.items(), key=lambda each: each[0][1]):
        listed = {*map(_drop_steps, listings.get(name, ())), *outside.get(number, ())}
        # within a save, what is listed and was not read is a link that is not followed
        read = held | {path for path in listed if path[: path.rfind("/") + 1] not in parts}
        folders.setdefault(kind, []).append(StepFolder(name, number, frozenset(held | listed), frozenset(read)))
    return folders


def _split_at_steps(name: str) -> Iterator[tuple[str, int, str]]:
    """Yield each folder of a step in a path, outermost first: with ``*`` in place of steps, its step, its path."""
    parts = name.split("/")
    for end in range(1, len(parts) + 1):
        if (step := read_step([parts[end - 1]])) is not None:
            yield replace_steps(parts[:end]), step[2], "/".join(parts[:end])


def _drop_steps(path: str) -> str:
    """Return a path with ``*`` in place of the steps of its folders."""
    folder, _, name = path.rpartition("/")
    return f"{replace_steps(folder.split('/'))}/{name}" if folder else name


def list_lacks(folders: list[StepFolder]) -> dict[str, list[Lack]]:
    """Return folder → what it lacks that its trainer needs to resume. Folders that are all alike lack nothing: they are exports.

    folders: of one kind, as `list_step_folders` returns them.
    """
    everything = frozenset[str]().union(*(folder.read for folder in folders))
    writers = [
        writer
        for writer in list_save_writers()
        if any(match_from_folder(writer.signs, path) is not None for path in everything)
    ]
    lacks: dict[str, list[Lack]] = {}
    for place, folder in enumerate(folders):
        found: list[Lack] = []
        for writer in writers:
            for part in writer.parts:
                known = [lack.part.pattern for lack in found if lack.part is not None]
                found += [
                    lack
                    for lack in _find_lacks(writer, part, folder, everything)
                    if not any(match_from_folder(pattern, lack.name) is not None for pattern in known)
                ]
        earlier = folders[:place]
        if earlier and folder is folders[-1]:
            always = frozenset.intersection(*(each.read for each in earlier))
            known = [part.pattern for writer in writers for part in writer.parts]
            # a loop of one's own: what it wrote is what the saves before have, and not all of it
            is_cut = (
                not writers
                and any(map(STATE.search, always))
                and folder.read <= frozenset().union(*(each.read for each in earlier))
            )
            found += [
                Lack(name, None, None, STATE.search(name) is not None and len(earlier) > 1)
                for name in sorted(always - folder.paths)
                if (is_cut or (len(earlier) > 1 and STATE.search(name)))
                and _is_lost(name, folder.paths)
                and not any(match_from_folder(pattern, name) is not None for pattern in known)
            ]
        lacks[folder.name] = list({lack.name: lack for lack in found}.values())
    return lacks


def _find_lacks(writer: SaveWriter, part: ResumePart, folder: StepFolder, everything: frozenset[str]) -> Iterator[Lack]:
    own = {at for path in folder.paths if (at := match_from_folder(part.pattern, path)) is not None}
    if part.beside:
        needing = {at for path in folder.paths if (at := match_from_folder(part.beside, path)) is not None}
        yield from (Lack(f"{at}{part.name}", writer, part) for at in sorted(needing - own))
    for path in sorted(everything - folder.paths):
        at = match_from_folder(part.pattern, path)
        if at is None or (at in own and not _is_lost(path, folder.paths)):
            continue
        name = path if at in own or not part.name else f"{at}{part.name}"
        yield Lack(name, writer, part)


def _is_lost(name: str, paths: Iterable[str]) -> bool:
    """Whether a file is missing that was not simply left out by another number of ranks: fewer leave out the last numbers."""
    pattern = re.compile(re.sub(r"\d+", r"(\\d+)", re.escape(name)))
    own = pattern.fullmatch(name)
    same = [match for other in paths if (match := pattern.fullmatch(other))]
    if same and OF_RANKS.fullmatch(name.rpartition("/")[2]):
        return False  # their names say how many there are
    numbers = tuple(map(int, own.groups())) if own else ()
    return not same or any(tuple(map(int, match.groups())) > numbers for match in same)
