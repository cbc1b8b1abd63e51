"""The saves of one run in the order of their steps: the evidence of rules about what moves, repeats and agrees between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Cell, Reading, Section
from ckptcheck.linter.rule import Skip
from ckptcheck.runs.saves.resume import Lack, StepFolder, list_lacks, list_step_folders
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.strand import Strand
from ckptcheck.text.formatting import count

COLUMNS = ("save", "step", "form", "weights", "moved", "moments", "moved there", "update", "identity")


@dataclass(frozen=True)
class SaveSeries(EvidenceDefaults):
    """The saves of one run."""

    target: str
    strands: tuple[Strand, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Folder → why it is no save of the series."""
    empty_folders: Mapping[str, int] = field(default_factory=dict)
    """Folder that has the name of a save but no weights → its step."""
    trackers: Mapping[str, str] = field(default_factory=dict)
    """File → its text, which names the save that a trainer resumes from."""
    listings: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """Folder of a step → the paths of all files below it, where it was searched."""
    outside: Mapping[int, Iterable[str]] = field(default_factory=dict)
    """Step → files of it that lie outside of its folder, with ``*`` in place of the step."""
    watched: Mapping[int, str] | None = None
    """Step → the identity of the weights that the live trainer sent then; None where no record was named."""
    resumed: tuple[Save, ...] = ()
    """The first saves of the resumed run, which it wrote to another folder."""
    reused: int = 0
    """Saves that have not changed since an earlier reading, which `series` kept."""
    kind: str = "saves"

    @property
    def saves(self) -> Iterator[Save]:
        """All saves, strand by strand."""
        return (save for strand in self.strands for save in strand.saves)

    @property
    def subject(self) -> str:
        """The number of saves, their steps, and their parts."""
        numbers = sorted({save.number for save in self.saves})
        steps = f"{self.strands[0].unit} {numbers[0]}" + (f"–{numbers[-1]}" if len(numbers) > 1 else "")
        parts = [count(len(numbers), "save"), steps, ", ".join(strand.name for strand in self.strands)]
        return " · ".join(parts)

    @property
    def unread(self) -> Mapping[str, str]:
        """Strands in which nothing could be compared: that is never a pass."""
        if any(strand.intervals for strand in self.strands) or self.watched or self.resumed:
            return {}
        return {strand.name: self._explain_alone(strand) for strand in self.strands}

    @property
    def failed_to(self) -> str:
        """The verb for what could not be done with the `unread`."""
        return "compare"

    @staticmethod
    def _explain_alone(strand: Strand) -> str:
        if len(strand.saves) == 1:
            return f"{strand.saves[0].name} is its only save"
        return f"of its {count(len(strand.saves), 'save')} {len(strand.digested) or 'none'} could be read completely"

    @cached_property
    def step_folders(self) -> Mapping[str, Sequence[StepFolder]]:
        """The folders of steps by their path with ``*`` in place of the step, oldest first."""
        return list_step_folders(self.saves, self.listings, self.outside)

    @cached_property
    def lacks(self) -> Mapping[str, Sequence[Lack]]:
        """Folder of a step → what it lacks that its trainer needs to resume."""
        return {
            name: lacks for folders in self.step_folders.values() for name, lacks in list_lacks(list(folders)).items()
        }

    def is_resumable(self, folder: StepFolder) -> bool:
        """Whether nothing is known to be wrong with a save that its trainer resumes from."""
        return not any(lack.severity == "error" for lack in self.lacks[folder.name]) and not any(
            save.defects for save in self.saves if f"{save.name}/".startswith(f"{folder.name}/")
        )

    def find_resumable(self, before: int | None = None) -> StepFolder | None:
        """Return the newest save that its trainer can resume from, None for none. before: a step that is too late."""
        steps: dict[int, list[StepFolder]] = {}
        for folders in self.step_folders.values():
            for folder in folders:
                if before is None or folder.number < before:
                    steps.setdefault(folder.number, []).append(folder)
        whole = [number for number, each in steps.items() if all(map(self.is_resumable, each))]
        return steps[max(whole)][0] if whole else None

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of saves, of tensors and bytes in all of them."""
        saves = list(self.saves)
        return {
            "files": sum(len(save.files) for save in saves),
            "tensors": sum(len(save.weights) + len(save.states) for save in saves),
            "bytes": sum(save.nbytes for save in saves),
        }

    @property
    def reading(self) -> Reading:
        """What was read, and what was known already."""
        read = sum(1 for _ in self.saves) - self.reused
        parts = [f"{count(read, 'save')} read"] + (
            [f"{self.reused} unchanged since the last call"] if self.reused else []
        )
        reading: dict[str, str | int | list[str]] = {"saves": ", ".join(parts)}
        if self.left_out:
            reading["left out"] = [f"{name}: {reason}" for name, reason in self.left_out.items()]
        return reading

    @property
    def sections(self) -> tuple[Section, ...]:
        """The table of the saves."""
        return list_sections(self.strands)

    @property
    def headline(self) -> str:
        """What it means that no rule found anything."""
        compared = sum(len(strand.digested) for strand in self.strands if strand.intervals)
        if not compared:
            return ""
        moved = sum(len(strand.moved) for strand in self.strands)
        total = sum(len(strand.digested[-1].weights) for strand in self.strands if strand.intervals)
        return (
            f"between {count(compared, 'save')} {moved:,} of {count(total, 'tensor')} moved, and the counters agree"
            if moved
            else ""
        )

    def require_intervals(self) -> None:
        """Skip a rule that compares saves where no two can be compared. Raises Skip."""
        if not any(strand.intervals for strand in self.strands):
            raise Skip("there are no two saves that can be compared")


def list_sections(strands: Sequence[Strand]) -> tuple[Section, ...]:
    """Return the table of the saves."""
    rows: list[tuple[Cell, ...]] = []
    for strand in strands:
        before = {interval.after.name: interval for interval in strand.intervals}
        for save in strand.saves:
            interval = before.get(save.name)
            rows.append(
                (
                    save.name,
                    save.number,
                    save.form or None,
                    len(save.weights),
                    len(interval.moved) if interval else None,
                    len(save.moments),
                    len(interval.moved_states & save.moments.keys()) if interval else None,
                    interval.distance if interval else None,
                    save.identity[:12] or None,
                )
            )
    return (Section("saves", COLUMNS, tuple(rows)),)
