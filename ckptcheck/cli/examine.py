"""Opens each target, repairs it where asked, and runs the rules over it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.checkpoint.options import Options
from ckptcheck.checkpoint.source import blob_digests
from ckptcheck.cli.output import progress_bar, talk
from ckptcheck.errors import CkptcheckError
from ckptcheck.repair import index_repair, list_repair
from ckptcheck.report import Report
from ckptcheck.rule import Rule, Severity, Skip
from ckptcheck.run import run
from ckptcheck.writing import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptcheck.checkpoint.megatron.run import Megatron


@dataclass(frozen=True)
class Plan:
    """What to do with every target."""

    rules: Sequence[Rule]
    ignored: Mapping[str, str]
    severities: Mapping[str, Severity]
    jobs: int | None = None
    fix: bool = False
    headers_only: bool = False
    remote_values: bool = False
    use_mmap: bool = True
    device: str = "cpu"
    stats: Path | None = None
    options: Options = field(default_factory=Options)


def examine(targets: Sequence[str], plan: Plan) -> list[Report]:
    """Report on every target; with several, one that cannot be opened does not stop the others.

    Raises CkptcheckError when the only target cannot be opened.
    """
    reports = []
    rows: list[dict[str, object]] = []
    for target in targets:
        try:
            with _no_collection():
                reports.append(_one(target, plan, rows))
            if plan.options.consumers and not reports[-1].consumers:
                talk(f"{target}: nothing in it is quantized, so --consumers were not asked")
        except CkptcheckError as error:
            if len(targets) == 1:
                raise
            talk(f"ckptcheck: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            reports.append(Report(target, error=error.message + (f" ({error.hint})" if error.hint else "")))
    if plan.stats is not None:
        from ckptcheck.values.table import as_json

        replace_file(plan.stats, as_json(rows))
    return reports


def _one(target: str, plan: Plan, rows: list[dict[str, object]]) -> Report:
    ckpt = open_target(target, jobs=plan.jobs)
    if plan.options.verify_blobs and not blob_digests(ckpt.source):
        raise CkptcheckError(
            f"--verify-blobs means nothing for {target}: none of its files is named by its hash",
            "give a snapshot of the Hugging Face cache; ckptcheck manifest and verify do it for any folder",
        )
    if not isinstance(ckpt, Checkpoint):
        return _megatron(ckpt, plan, rows)
    if plan.fix:
        ckpt = _repaired(ckpt, target, plan)
    ckpt.options = plan.options
    with progress_bar(target) as progress:
        if plan.headers_only:
            ckpt.no_values = "--headers-only"
        elif ckpt.source.local is None and not plan.remote_values:
            ckpt.no_values = "values on the Hub are read only with --values"
        else:
            from ckptcheck.values.measure import attach

            attach(ckpt, jobs=plan.jobs, use_mmap=plan.use_mmap, device=plan.device, progress=progress, early=True)
        try:
            _read_headers(ckpt, target)
            report = run(ckpt, plan.rules, ignored=plan.ignored, severities=plan.severities)
            if plan.options.consumers:
                from ckptcheck.dialects.table import rows as views

                report = replace(report, consumers=tuple(views(ckpt)))
            if plan.stats is not None:
                from ckptcheck.values.table import records

                try:
                    rows += records(ckpt)
                except Skip as skip:
                    raise CkptcheckError(f"there is nothing for --stats to write: {skip}") from skip
            return report
        finally:
            ckpt.release()


def _megatron(megatron: Megatron, plan: Plan, rows: list[dict[str, object]]) -> Report:
    """Report on a Megatron checkpoint: the same rules about values, others about the rest."""
    if plan.fix:
        talk(f"{megatron.target}: nothing is repaired in a Megatron checkpoint")
    megatron.options = plan.options
    with progress_bar(megatron.target) as progress:
        if plan.headers_only:
            megatron.no_values = "--headers-only"
        else:
            from ckptcheck.values.measure import attach

            megatron.reads_values = True
            attach(megatron.values_view, jobs=plan.jobs, use_mmap=plan.use_mmap, device=plan.device, progress=progress)
        report = run(megatron, plan.rules, ignored=plan.ignored, severities=plan.severities)
    if plan.stats is not None:
        from ckptcheck.values.table import records

        try:
            rows += records(megatron.values_view)
        except Skip as skip:
            raise CkptcheckError(f"there is nothing for --stats to write: {skip}") from skip
    return report


def _read_headers(ckpt: Checkpoint, target: str) -> None:
    """Read all headers; from the Hub that takes long enough to show how far it is."""
    if ckpt.source.local is None:
        with progress_bar(target, bytewise=False) as ckpt.progress:
            _ = ckpt.shards


REPAIRS = (("the index", index_repair), ("the ignore list", list_repair))


def _repaired(ckpt: Checkpoint, target: str, plan: Plan) -> Checkpoint:
    """Make every safe repair; return the checkpoint as it is then."""
    said = False
    for what, plan_of in REPAIRS:
        ckpt.options = plan.options
        repair, reason = plan_of(ckpt)
        if repair is not None:
            kept = repair.apply()
            talk(f"{target}: {repair.done}" + (f"; the old one is {kept.name}" if kept else ""))
            ckpt = open_checkpoint(target, jobs=plan.jobs)
        elif reason:
            talk(f"{target}: {what} was not repaired: {reason}")
        said = said or repair is not None or bool(reason)
    if not said:
        talk(f"{target}: nothing to repair")
    return ckpt


def show_repairs(targets: Sequence[str], plan: Plan) -> int:
    """Print as a diff what --fix would change; return the exit code: 1 if it would change anything."""
    changed = 0
    for target in targets:
        ckpt = open_checkpoint(target, jobs=plan.jobs)
        ckpt.options = plan.options
        said = False
        for what, plan_of in REPAIRS:
            repair, reason = plan_of(ckpt)
            if repair is not None:
                sys.stdout.write(repair.diff())
                changed = 1
            elif reason:
                talk(f"{target}: {what} would not be repaired: {reason}")
            said = said or repair is not None or bool(reason)
        if not said:
            talk(f"{target}: nothing to repair")
    return changed


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking hundreds of thousands of live tensors again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.freeze()  # else it walks them once more, now
            gc.enable()
