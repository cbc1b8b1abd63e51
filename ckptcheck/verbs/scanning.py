"""Scans targets: opens each, repairs it on request, and runs the rules over it."""

from __future__ import annotations

import gc
from collections.abc import Collection, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.deltas.target import may_be_deltas
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.checkpoint.source import blob_digests
from ckptcheck.checkpoint.value_reader import UnreadValues, ValueReader
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report, add_cluster_notes, only_informs
from ckptcheck.linter.rule import Rule, Severity, Skip
from ckptcheck.linter.runner import run_rules
from ckptcheck.runners.parts import Parts, PartWriter
from ckptcheck.runners.runner import Runner
from ckptcheck.text.file_io import replace_file
from ckptcheck.text.observer import SILENT, Advance, Observer
from ckptcheck.verbs.repair import plan_ignore_repair, plan_index_repair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptcheck.checkpoint.megatron.megatron import Megatron


class ScanRequest(msgspec.Struct, frozen=True):
    """What to do with every target."""

    rules: Sequence[Rule]
    """The rules to run."""
    ignored: Mapping[str, str]
    """Code of a rule that does not run → the reason."""
    severities: Mapping[str, Severity]
    """Code of a rule → the severity that replaces its own."""
    asked: Mapping[str, Collection[str]] = msgspec.field(default_factory=dict)
    """What is said if none of them applies → codes of rules that the user asked for by name, which must not be skipped."""
    jobs: int | None = None
    """Files read at a time; None: as many as there are cores."""
    fix: bool = False
    """Make the safe repairs before the rules run."""
    headers_only: bool = False
    """Read no tensor values."""
    remote_values: bool = False
    """Read the values of targets on the Hub too."""
    runner: Runner | None = None
    """What runs passes over all bytes; None: this process and workers of it."""
    use_mmap: bool = True
    """Map files into memory; False reads them."""
    stats: Path | None = None
    """File for the statistics of every tensor; None: they are not written."""
    options: ScanOptions = msgspec.field(default_factory=ScanOptions)
    pictures: bool = False
    """Draw pictures; the value pass then samples every tensor on its way."""
    observer: Observer = SILENT

    @property
    def asked_codes(self) -> frozenset[str]:
        """Codes of the rules that must not be skipped."""
        return frozenset().union(*self.asked.values())


def scan_targets(targets: Sequence[str], request: ScanRequest) -> list[Report]:
    """Report on every target. With several targets, one that cannot be opened does not stop the others.

    Raises CkptcheckError when the only target cannot be opened.
    """
    reports = []
    rows: list[dict[str, object]] = []
    notes: Sequence[str] = getattr(request.runner, "notes", ())
    for target in targets:
        known = len(notes)
        try:
            with _paused_garbage_collection():
                reports.append(add_cluster_notes(_scan_target(target, request, rows), notes[known:]))
            request.observer.note_report(reports[-1])
        except CkptcheckError as error:
            if len(targets) == 1:
                raise
            reports.append(Report(target, error=error.message + (f" ({error.hint})" if error.hint else "")))
    if request.stats is not None:
        from ckptcheck.values.detectors.tensor_table import encode_records

        if not rows:
            raise CkptcheckError(
                "there is nothing for --stats to write: no target has tensors whose values can be read"
            )
        replace_file(request.stats, encode_records(rows))
    return reports


def _scan_target(target: str, request: ScanRequest, rows: list[dict[str, object]]) -> Report:
    with request.observer.progress(target) as progress:
        return _scan_opened(target, request, rows, _create_value_reader(request, progress))


def _create_value_reader(request: ScanRequest, progress: Advance | None) -> ValueReader:
    if request.headers_only:
        return UnreadValues("--headers-only")
    from ckptcheck.values.value_pass import ValuePass

    return ValuePass(
        jobs=request.jobs,
        use_mmap=request.use_mmap,
        read_remote=request.remote_values,
        # who computes a part does not know what the parts will be joined to
        takes_samples=isinstance(request.runner, (PartWriter, Parts)) or request.stats is not None or request.pictures,
        runner=request.runner,
        progress=progress,
    )


def run_passes(targets: Sequence[str], request: ScanRequest) -> None:
    """Run every pass that rules about values may need, by the runner of the request, which keeps the results.

    Raises CkptcheckError where a target cannot be opened, EvidenceError where not everything could be read.
    """
    for target in targets:
        with request.observer.progress(target) as progress:
            reader = _create_value_reader(request, progress)
            ckpt = open_target(target, jobs=request.jobs, options=request.options, value_reader=reader)
            if isinstance(ckpt, Checkpoint):
                _read_headers(ckpt, target, request.observer)
                _ = ckpt.values
            else:
                _ = ckpt.record_stats, ckpt.values_view.values


def _scan_opened(target: str, request: ScanRequest, rows: list[dict[str, object]], value_reader: ValueReader) -> Report:
    if may_be_deltas(target):
        from ckptcheck.checkpoint.deltas.open import open_lone_deltas

        if (deltas := open_lone_deltas(target)) is not None:
            return run_rules(
                deltas, request.rules, ignored=request.ignored, severities=request.severities, asked=request.asked_codes
            )
    ckpt = open_target(
        target, runner=request.runner, jobs=request.jobs, options=request.options, value_reader=value_reader
    )
    if request.options.verify_blobs and not blob_digests(ckpt.source):
        raise CkptcheckError(
            f"--set verify-blobs has no effect for {target}: none of its files is named by its hash",
            "give a snapshot of the Hugging Face cache; ckptcheck manifest and verify do it for any folder",
        )
    if not isinstance(ckpt, Checkpoint):
        return _scan_megatron(ckpt, request, rows)
    if request.fix:
        ckpt = _repair(ckpt, target, request)
    request.observer.keep(ckpt)
    try:
        value_reader.start(ckpt)
        _read_headers(ckpt, target, request.observer)
        report = _run_rules(ckpt, request)
        report = structs.replace(_add_vocabulary(report, ckpt), next_step=_propose(report, ckpt, request))
        if request.options.consumers:
            from ckptcheck.consumers.table import explain_unknown, tabulate_consumers

            error = report.error or explain_unknown(ckpt)
            report = structs.replace(report, consumers=tuple(tabulate_consumers(ckpt)), error=error)
        if request.stats is not None:
            rows += _list_tensor_records(ckpt)
        return _add_pictures(report, ckpt, request)
    finally:
        value_reader.close()


def _propose(report: Report, ckpt: Checkpoint, request: ScanRequest) -> str:
    """Return what a user may ask next about a checkpoint without an error or a warning; "" where there is nothing to add."""
    if not (report.verdict == "clean" or only_informs(report)) or ckpt.is_single_shard:
        return ""
    if ckpt.source.local is None and not request.remote_values and not request.headers_only:
        return "--values reads its values too"
    if ckpt.is_adapter:
        return "" if request.options.base else "--base FOLDER compares it with its base model"
    if not request.options.dry_loaders:
        return "--dry-load vllm asks the engine's own loader; ckptcheck diff compares two copies of the model"
    return "ckptcheck diff compares two copies of the model"


def _run_rules(evidence: Checkpoint | Megatron, request: ScanRequest) -> Report:
    """Run the rules of the request; the observer gets what is known before values are read."""
    return run_rules(
        evidence,
        request.rules,
        ignored=request.ignored,
        severities=request.severities,
        asked=request.asked_codes,
        note_partial=request.observer.note_report,
    )


def _scan_megatron(megatron: Megatron, request: ScanRequest, rows: list[dict[str, object]]) -> Report:
    """Report on a Megatron checkpoint. The rules about values are the same, the others are its own."""
    if request.fix:
        request.observer.log(f"{megatron.target}: nothing is repaired in a Megatron checkpoint")
    report = _run_rules(megatron, request)
    if megatron.weights:
        report = _add_pictures(_add_vocabulary(report, megatron.values_view), megatron.values_view, request)
    if request.stats is not None:
        rows += _list_tensor_records(megatron.values_view)
    return report


def _add_vocabulary(report: Report, ckpt: Checkpoint) -> Report:
    """Add the counts of near-zero and identical rows, if the rules have read the values."""
    if ckpt.values_read is None:
        return report
    from ckptcheck.values.detectors.vocabulary_summary import summarize_vocabulary

    return structs.replace(report, sections=(*report.sections, *summarize_vocabulary(ckpt)))


def _add_pictures(report: Report, ckpt: Checkpoint, request: ScanRequest) -> Report:
    """Add the sections and pictures of the page, if they are wanted."""
    if not request.pictures:
        return report
    from ckptcheck.reporters.evidence_pictures import draw_pictures

    return structs.replace(report, pictures=draw_pictures(ckpt))


def _list_tensor_records(ckpt: Checkpoint) -> list[dict[str, object]]:
    """Return the statistics of every tensor for --stats. Raises CkptcheckError if no values are read."""
    from ckptcheck.values.detectors.tensor_table import tensor_records

    try:
        return list(tensor_records(ckpt))
    except Skip as skip:
        raise CkptcheckError(f"there is nothing for --stats to write: {skip}") from skip


def _read_headers(ckpt: Checkpoint, target: str, observer: Observer) -> None:
    """Read all headers. From the Hub that takes long enough for a progress bar."""
    if ckpt.source.local is None:
        with observer.progress(target, bytewise=False) as progress:
            ckpt.read_headers(progress)


REPAIRS = (("the index", plan_index_repair), ("the ignore list", plan_ignore_repair))


def _repair(ckpt: Checkpoint, target: str, request: ScanRequest) -> Checkpoint:
    """Make every safe repair and return the checkpoint as it is afterwards."""
    has_message = False
    for part, plan_repair in REPAIRS:
        repair, reason = plan_repair(ckpt)
        if repair is not None:
            backup = repair.apply()
            request.observer.log(f"{target}: {repair.done}" + (f"; the old file is {backup.name}" if backup else ""))
            ckpt = open_checkpoint(target, jobs=request.jobs, options=request.options, value_reader=ckpt.value_reader)
        elif reason:
            request.observer.log(f"{target}: {part} was not repaired: {reason}")
        has_message = has_message or repair is not None or bool(reason)
    if not has_message:
        request.observer.log(f"{target}: nothing to repair")
    return ckpt


def preview_repairs(targets: Sequence[str], request: ScanRequest) -> str:
    """Return what --fix would change, as unified diffs; "" where it would change nothing."""
    diffs = ""
    for target in targets:
        ckpt = open_checkpoint(target, jobs=request.jobs, options=request.options)
        has_message = False
        for part, plan_repair in REPAIRS:
            repair, reason = plan_repair(ckpt)
            if repair is not None:
                diffs += repair.diff()
            elif reason:
                request.observer.log(f"{target}: {part} would not be repaired: {reason}")
            has_message = has_message or repair is not None or bool(reason)
        if not has_message:
            request.observer.log(f"{target}: nothing to repair")
    return diffs


@contextmanager
def _paused_garbage_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector, which would walk hundreds of thousands of live tensors again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # without it the collector walks them once more, now
            gc.freeze()
            gc.enable()
