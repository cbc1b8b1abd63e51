"""``ckptcheck gate``: every check that a job can have before it starts, the cheapest first, within a deadline."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import Argument, Option, StrPath, Words
from ckptcheck.verbs.parameter import choose_subset, several, to_path
from ckptcheck.verbs.verb import Verb, find_verb, verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import FailOn, Report


@verb()
def gate(
    *job: Annotated[
        StrPath,
        Argument(
            "A gate file (TOML with the key job), or the job's own .yaml, .toml, .sh or .py file; and key=value overrides.",
            metavar="JOB...",
        ),
    ],
    deadline: Annotated[
        str | float | None,
        Option("How long the gate may take: '10 min', '90 s'.", metavar="TIME", shown="as the gate file says"),
    ] = None,
    stages: Annotated[
        Words,
        Option(
            "The stages that run: preflight, scan, refit, parity, first-step.",
            shown="as the gate file says, else all but first-step",
            has_commas=True,
        ),
    ] = (),
    first_step: Annotated[
        bool | None,
        Option(
            "Last, run the job's own command for its first step, with a watch on its engine; needs what the job needs."
        ),
    ] = None,
    go_on: Annotated[bool | None, Option("Run the later stages although an earlier one has findings.")] = None,
    folder: Annotated[
        StrPath | None,
        Option(
            "The folder for the page and for rollouts.",
            metavar="DIR",
            shown="one named after the file: train.gate",
            panel="Files",
        ),
    ] = None,
    model: Annotated[
        StrPath | None,
        Option(
            "Check this copy of the checkpoint that the job names.",
            metavar="DIR",
            shown="as the job says",
            panel="Files",
        ),
    ] = None,
    fail_on: "FailOn" = "error",
    observer: Observer = SILENT,
) -> "Report":
    """Check a job before it starts: its configuration, its checkpoints, a trial weight sync, and the first step's parity.

    Exit codes: 0 every stage passed, 1 findings (later stages are then left out), 2 a stage could not check, or did not fit into
    the deadline.

    A gate file runs the rules, transports, Pythons and the command that it names: read one that is not yours before you use it.

    In Python `fail_on` is the lightest severity that ends the gate. Stages run in the order of their cost, and one with findings
    ends the gate. One that did not fit into the deadline, or could not check the job for another reason, makes the report
    incomplete. `folder` gets the page, and the rollouts of the stage parity.
    """
    import time

    began = time.monotonic()
    from ckptcheck.live.gate.gate_file import ALL_STAGES, FIRST_STEP, parse_duration, read_gate_request
    from ckptcheck.live.gate.plan import FUNCTIONS, check_options
    from ckptcheck.live.gate.run_gate import run_gate
    from ckptcheck.verbs.judge import judge
    from ckptcheck.verbs.preflight import open_job_report, preflight
    from ckptcheck.verbs.record import record_rollouts
    from ckptcheck.verbs.refit import refit
    from ckptcheck.verbs.scan import scan
    from ckptcheck.verbs.score import score_rollouts

    functions: dict[str, Callable[..., Any]] = {
        "preflight": preflight, "scan": scan, "refit": refit, "record_rollouts": record_rollouts,
        "score_rollouts": score_rollouts, "judge": judge,
    }  # fmt: skip
    request = read_gate_request([os.fspath(part) for part in job])
    if not request.job:
        raise CkptcheckError("no job is named", hint="name the job's own file, or a gate file")
    request = replace(
        request,
        deadline=request.deadline if deadline is None else parse_duration(deadline),
        stages=choose_subset(several(stages), ALL_STAGES, "--stages") if stages else request.stages,
        goes_on=request.goes_on if go_on is None else go_on,
        folder=to_path(folder) or request.folder,
        model=request.model if model is None else os.fspath(model),
    )
    if first_step is not None:
        kept = [stage for stage in request.stages if stage != FIRST_STEP]
        request = replace(request, stages=(*kept, FIRST_STEP) if first_step else tuple(kept))
    check_options(request, functions)
    options = {
        stage: _check_values(stage, table, [find_verb(functions[name]) for name in FUNCTIONS[stage]])
        for stage, table in request.options.items()
    }
    opened, report = open_job_report(request.job, model=request.model, pictures=True, **options.get("preflight", {}))
    if request.file is not None:
        paths = [checkpoint.path for checkpoint in opened.checkpoints.values() if not checkpoint.reason]
        _require_outside(request.file, [*([request.model] if request.model else []), *paths])
    return run_gate(opened, report, request, functions, fail_on, observer, began)


def _require_outside(file: Path, checkpoints: Sequence[str]) -> None:
    """Raise CkptcheckError for a gate file that lies in a checkpoint, with which it may have come: it can run code."""
    from ckptcheck.text.file_io import real_path
    from ckptcheck.verbs.settings import list_folders

    places = {real_path(file).parent, real_path(file.parent)}
    for checkpoint in checkpoints:
        folders = [real_path(folder) for folder in list_folders(checkpoint)]
        if any(place.is_relative_to(folder) for place in places for folder in folders):
            raise CkptcheckError(
                f"{file} lies in the checkpoint {checkpoint}, and a gate file can run code",
                hint="copy it to a folder of yours when you have read it",
            )


def _check_values(stage: str, options: Mapping[str, Any], verbs: Sequence[Verb]) -> dict[str, Any]:
    """Return the values of a stage of a gate file in their one form. Raises CkptcheckError for one that its verbs do not take."""
    checked = dict(options)
    for parameters in (each.parameters for each in verbs):
        for name in options.keys() & parameters.keys():
            try:
                checked[name] = parameters[name].check(options[name], f"[{stage}]")
            except TypeError as error:
                raise CkptcheckError(str(error)) from None
    return checked
