"""``ckptcheck preflight``: reads the configuration of an RL job and says what will go wrong, before it starts."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import structs

from ckptcheck.verbs.options import (
    Argument,
    FrameworkName,
    FrameworkVersion,
    Ignore,
    Option,
    Select,
    Setting,
    StrPath,
    Words,
)
from ckptcheck.verbs.parameter import several
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.jobs.job import Job
    from ckptcheck.linter.report import Report


@verb()
def preflight(
    *job: Annotated[
        StrPath,
        Argument(
            "The job's .yaml, .toml, .sh or .py file (several: in order), and key=value overrides.", metavar="JOB..."
        ),
    ],
    framework: FrameworkName = None,
    here: Annotated[
        bool,
        Option("The job will start on this machine: also check its paths, ports, disks and shared memory."),
    ] = False,
    show_settings: Annotated[
        bool,
        Option("Also list every setting, with its place, and what the job leaves to its engine.", "--settings"),
    ] = False,
    env: Annotated[
        Words,
        Option(
            "A variable that the job takes from its environment; 1=VALUE: the script's argument.", metavar="NAME=VALUE"
        ),
    ] = (),
    scan_checkpoints: Annotated[
        bool,
        Option(
            "Read the headers of checkpoints that the job names and that are here.",
            "--scan/--no-scan",
            panel="What is read",
        ),
    ] = True,
    engine_version: Annotated[str, Setting("Version of the engine, for its defaults, where no file pins it.")] = "",
    te_version: Annotated[str, Setting("Version of Transformer Engine.")] = "",
    framework_version: FrameworkVersion = "",
    select: Select = (),
    ignore: Ignore = (),
    pictures: bool = False,
) -> "Report":
    """Read the configuration of an RL job and say what will go wrong, then how to check it on the real engine and trainer.

    Nothing is executed. Exit codes: 0 nothing at or above --fail-on, 1 findings, 2 the configuration cannot be read.
    """
    return open_job_report(
        job, framework, engine_version, te_version, framework_version, scan_checkpoints=scan_checkpoints,
        show_settings=show_settings, here=here, env=several(env), select=several(select), ignore=several(ignore),
        pictures=pictures,
    )[1]  # fmt: skip


def open_job_report(
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
) -> "tuple[Job, Report]":
    """Return a job as `preflight` reads it, with its report. model: a copy of the model that the job names, or None."""
    from ckptcheck.jobs.job import build_settings_section
    from ckptcheck.jobs.open_job import open_job, split_variables
    from ckptcheck.jobs.this_machine import Probe
    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.linter.selection import find_asked, match_rules, select_rules
    from ckptcheck.verbs.reports import build_report

    loaded = load_rules()
    ignored = {rule.code: "ignored on the command line" for pattern in ignore for rule in match_rules(loaded, pattern)}
    selected = select_rules(loaded, select)
    opened = open_job(
        [os.fspath(part) for part in job], framework=framework, engine_version=engine_version, te_version=te_version,
        framework_version=framework_version, scan=scan_checkpoints, model=model, here=Probe() if here else None,
        environment=split_variables(env), shows_steps=show_settings,
    )  # fmt: skip
    opened.lists_settings = show_settings
    if show_settings:
        opened.sections = (build_settings_section(opened), *opened.sections)
    asked = find_asked(loaded, select, ignored)
    report = build_report(opened, loaded, selected=selected, ignored=ignored, asked=asked, pictures=pictures)
    if framework is not None and all(
        setting.status not in ("set", "unresolved") for setting in opened.settings.values()
    ):
        why = f"--framework {framework}: none of its settings is in the job, so nothing of the job was checked"
        report = structs.replace(report, error=report.error or why)
    return opened, report
