"""Prepares the runner of a verb, and makes a report of its evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ckptcheck.errors import UsageError

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture
    from ckptcheck.linter.report import Report
    from ckptcheck.linter.rule import Rule
    from ckptcheck.runners.runner import Runner


def check_runner(runner: Runner | None, device: str = "cpu") -> Runner | None:
    """Return the runner, None for the default one. Raises CkptcheckError if it cannot run anything."""
    from ckptcheck.runners.parts import Parts
    from ckptcheck.runners.runner import Local

    if isinstance(runner, Parts):
        from ckptcheck.checkpoint.objects.part_folder import open_part_folder

        runner = Parts(open_part_folder(runner.folder))
        runner.read_command()
    elif runner is not None and device != "cpu":
        raise UsageError("--device has no effect where another machine scans the values")
    return None if type(runner) is Local else runner


def add_notes(report: Report, runner: Runner | None) -> Report:
    """Add the events in the cluster that did the work."""
    from ckptcheck.linter.report import add_cluster_notes

    return add_cluster_notes(report, getattr(runner, "notes", ()))


def build_report(
    evidence: Any,
    loaded: Sequence[Rule] | None = None,
    *,
    selected: Sequence[Rule] | None = None,
    ignored: Mapping[str, str] | None = None,
    asked: Mapping[str, Collection[str]] | None = None,
    pictures: bool = False,
) -> Report:
    """Run rules over evidence, and draw it if pictures are wanted.

    loaded: all rules; None: the built-in ones. selected: those that run; None: all loaded ones.
    asked: what is said if none of them applies → codes of rules that the user asked for, which must not be skipped.
    """
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.runner import note_unanswered, run_rules

    wanted = asked or {}
    codes = {code for each in wanted.values() for code in each}
    rules = load_rules() if loaded is None else loaded
    report = run_rules(evidence, rules if selected is None else selected, ignored=ignored, asked=codes)
    report = note_unanswered([report], wanted)[0]
    drawn: tuple[Picture, ...] = ()
    if pictures:
        from ckptcheck.reporters.evidence_pictures import draw_pictures

        drawn = draw_pictures(evidence)
    return structs.replace(report, rules=tuple(rules), pictures=drawn)
