"""Checks a job before it starts: its configuration alone, or everything in the order of cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptcheck.api.arguments import StrPath, choose_subset, to_path, wrap_single
from ckptcheck.api.checkpoints import scan_all
from ckptcheck.api.judging import judge
from ckptcheck.api.recording import record_rollouts, score_rollouts
from ckptcheck.api.report import build_report
from ckptcheck.api.syncs import refit
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.jobs.job import Job
    from ckptcheck.linter.report import FailOn, Report


def preflight(
    *job: StrPath,
    framework: str | None = None,
    engine_version: str = "",
    te_version: str = "",
    framework_version: str = "",
    scan_checkpoints: bool = True,
    show_settings: bool = False,
    here: bool = False,
    env: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    pictures: bool = False,
) -> Report:
    """Read the configuration of an RL job and say what will go wrong. Nothing is executed.

    Args:
        job: the job's .yaml, .toml or .sh files, in order, and ``key=value`` overrides.
        framework: verl, slime, nemo-rl, pipelinerl, roll, prime-rl, vllm or sglang; None: detected by the keys.
        engine_version: version of the engine, for its defaults; "": as the files pin it.
        te_version: version of Transformer Engine.
        framework_version: the framework's release or the date of a commit, for its defaults; "": as the files pin it.
        scan_checkpoints: read the headers of checkpoints that the job names and that are on this disk.
        show_settings: add a section with every setting that was understood, and its place; and report what the job leaves to its
            engine (JOB005) and how old its rollouts may be (JOB007).
        here: the job will start on this machine: also look for its paths, ports, disk space and shared memory.
        env: ``NAME=value`` for variables that the job's script or configuration takes from its environment; ``1=value`` is the
            script's first argument.
        select: run only these rules: codes, prefixes of codes, or names.
        ignore: rules that do not run; the report lists them as skipped.
        pictures: draw what was found, for a notebook.

    """
    select = wrap_single(select)
    ignore = wrap_single(ignore)
    return _open_job(
        job, framework, engine_version, te_version, framework_version, scan_checkpoints=scan_checkpoints,
        show_settings=show_settings, here=here, env=wrap_single(env), select=select, ignore=ignore,
        pictures=pictures,
    )[1]  # fmt: skip


def _open_job(
    job: Sequence[StrPath],
    framework: str | None = None,
    engine_version: str = "",
    te_version: str = "",
    framework_version: str = "",
    *,
    scan_checkpoints: bool = True,
    show_settings: bool = False,
    here: bool = False,
    env: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    model: str | None = None,
    pictures: bool = False,
) -> tuple[Job, Report]:
    """Return a job as `preflight` reads it, and what it finds in it. model: a copy of the model that it names, None for none."""
    from ckptcheck.jobs.job import build_settings_section
    from ckptcheck.jobs.open_job import open_job, split_variables
    from ckptcheck.jobs.this_machine import Probe
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.selection import match_rules, select_rules

    loaded = load_rules()
    ignored = {rule.code: "ignored on the command line" for pattern in ignore for rule in match_rules(loaded, pattern)}
    selected = select_rules(loaded, select)
    opened = open_job(
        [os.fspath(part) for part in job], framework=framework, engine_version=engine_version, te_version=te_version,
        framework_version=framework_version, scan=scan_checkpoints, model=model, here=Probe() if here else None,
        environment=split_variables(env),
    )  # fmt: skip
    opened.lists_settings = show_settings
    if show_settings:
        opened.sections = (build_settings_section(opened), *opened.sections)
    return opened, build_report(opened, loaded, selected=selected, ignored=ignored, pictures=pictures)


def gate(
    *job: StrPath,
    deadline: str | float | None = None,
    stages: Sequence[str] = (),
    go_on: bool | None = None,
    folder: StrPath | None = None,
    model: StrPath | None = None,
    fail_on: FailOn = "error",
    observer: Observer = SILENT,
) -> Report:
    """Check a job before it starts: its configuration, its checkpoints, a weight sync, and the first step's parity.

    The stages run in the order of their cost, as the job's own file says. A stage with findings ends the gate. One that did not
    fit into the deadline, or could not check the job for another reason, makes the report incomplete: it has not passed. What
    finished is kept for a day in `folder`, and a gate that starts again uses it.

    Args:
        job: a gate file (TOML with the key ``job``), or the job's own files; and ``key=value`` overrides of the job.
        deadline: how long the gate may take: ``10 min``, or seconds; None: as the gate file says, else as long as it needs.
        stages: those that run: preflight, scan, refit, parity; (): as the gate file says, else all.
        go_on: run the dearer stages although a cheaper one has findings; None: as the gate file says, else not.
        folder: the folder that keeps what finished; None: as the gate file says, else one named after the file, ``train.gate``.
        model: the checkpoint to check in place of the one that the job names, for a copy of it elsewhere on this disk.
        fail_on: the lightest severity that ends the gate.
        observer: receives messages.

    """
    import time

    began = time.monotonic()
    stages = wrap_single(stages)
    from ckptcheck.live.gate.gate_file import STAGES, parse_duration, read_gate_request
    from ckptcheck.live.gate.plan import check_options
    from ckptcheck.live.gate.run_gate import run_gate

    functions: dict[str, Callable[..., Any]] = {
        "preflight": preflight, "scan_all": scan_all, "refit": refit, "record_rollouts": record_rollouts,
        "score_rollouts": score_rollouts, "judge": judge,
    }  # fmt: skip
    request = read_gate_request([os.fspath(part) for part in job])
    if not request.job:
        raise CkptcheckError("no job is named", hint="name the job's own file, or a gate file")
    request = replace(
        request,
        deadline=request.deadline if deadline is None else parse_duration(deadline),
        stages=choose_subset(stages, STAGES, "--stages") if stages else request.stages,
        goes_on=request.goes_on if go_on is None else go_on,
        folder=to_path(folder) or request.folder,
        model=request.model if model is None else os.fspath(model),
    )
    check_options(request, functions)
    opened, report = _open_job(request.job, model=request.model, pictures=True, **request.options.get("preflight", {}))
    return run_gate(opened, report, request, functions, fail_on, observer, began)
