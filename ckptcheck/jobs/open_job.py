"""Reads the files and overrides that the user names into a `Job`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.framework_folders import find_framework_data, list_frameworks_with, load_framework_file
from ckptcheck.jobs import launch
from ckptcheck.jobs.dated_defaults import DatedDefaults, FrameworkVersion, date_by_removed_keys, load_table
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.engine_flags import apply_engine_defaults
from ckptcheck.jobs.files import PINNED, SHELL, TOML, YAML, JobFiles, find_environment
from ckptcheck.jobs.framework import Framework, environment_flag, fill_job, find_closest_name
from ckptcheck.jobs.framework_version import find_framework_version, find_pin_around
from ckptcheck.jobs.job import Job, Setting, UnknownKey
from ckptcheck.jobs.key_names import list_refused, list_unknown_names, list_unread_keys, load_key_names
from ckptcheck.jobs.known_issues import find_met_issues, list_wrong_values
from ckptcheck.jobs.launch_script import read_launch_script
from ckptcheck.jobs.live_arguments import MEMORY_FAULT, SUGGESTIONS, isolate_memory_fault, suggest_commands
from ckptcheck.jobs.named_checkpoints import apply_model_defaults, scan_named_checkpoints
from ckptcheck.jobs.python_source.python_job import require_python_job
from ckptcheck.jobs.shell.word import Word
from ckptcheck.jobs.this_machine import Probe, look_at_machine
from ckptcheck.linter.report import Section
from ckptcheck.text.file_io import expand_home
from ckptcheck.text.formatting import join_truncated

KEY_TABLES = ("keys.json", "grpo_keys.json")
"""Tables of all keys by release; where a framework has one, its reader reports every other key."""


@cache
def list_frameworks() -> Mapping[str, Framework]:
    """Return the readers of all frameworks by name, in the order in which commands are held against them.

    Each folder of ckptcheck/frameworks/ with a ``preflight.py`` has one.
    """
    readers: list[Framework] = [
        load_framework_file(name, "preflight").FRAMEWORK for name in list_frameworks_with("preflight")
    ]
    readers.sort(key=lambda reader: (reader.is_engine, reader.precedence))
    return {reader.name: reader for reader in readers}


def open_job(
    arguments: Sequence[str],
    *,
    framework: str | None = None,
    engine_version: str = "",
    te_version: str = "",
    framework_version: str = "",
    scan: bool = True,
    model: str | None = None,
    here: Probe | None = None,
    environment: Mapping[str, str] | None = None,
    shows_steps: bool = False,
) -> Job:
    """Read a job.

    Args:
        arguments: The job's files, and overrides ``key=value`` that replace values of the files.
        framework: A framework's name; None recognises the framework by the keys or the launch line.
        engine_version: The engine's version; "" takes the version that a file pins.
        te_version: The version of Transformer Engine; "" takes the version that a file pins.
        framework_version: The framework's release, or the date of a commit; "" takes the version that a file pins.
        scan: Whether to scan the checkpoints that the job names.
        model: The path of a checkpoint to scan in place of the model that the job names; None for that one.
        here: Asks the system of this machine for what the job needs of it; None does not look.
        environment: Values of variables that the job's scripts and configurations take from their environment.
        shows_steps: Whether the suggested commands are the single steps of a gate.

    Raises:
        CkptcheckError: A file cannot be read or belongs to no framework. The message has file and line where possible.
    """
    if framework is not None and framework not in list_frameworks():
        raise CkptcheckError(
            f"there is no framework {clip(framework)}", hint=f"choose one of {', '.join(list_frameworks())}"
        )
    names, overrides = _split_arguments(arguments)
    if not names:
        raise CkptcheckError("no configuration is named", hint="name the job's .yaml, .toml or .sh file")
    files = JobFiles(Path(expand_home(names[0])), environment)
    try:
        with files.budget:
            job, document, reader = _read_job(
                files, names, overrides, framework, engine_version, te_version, framework_version
            )
            files.budget.require_left(names[0])
        # What follows looks at more than the job's files, so that the clock of their budget stands still.
        if scan:
            scan_named_checkpoints(job, files.folder, model)
            apply_model_defaults(job)
        if here is not None:
            job.machine = look_at_machine(job, document, reader, files.folder, here)
        # A gate takes no option that changes how the job is read; its file does.
        is_plain = not (framework or engine_version or te_version or framework_version or environment or model)
        if lines := suggest_commands(job, [] if shows_steps or not is_plain else arguments):
            job.sections = (Section(SUGGESTIONS, lines=tuple(lines)),)
        if shows_steps and (lines := isolate_memory_fault(job)):
            job.sections += (Section(MEMORY_FAULT, lines=tuple(lines)),)
    except (RecursionError, MemoryError) as error:
        raise CkptcheckError(
            f"{names[0]} is nested too deeply, or repeats itself too often, to be a job's configuration"
        ) from error
    return job


def _read_job(
    files: JobFiles, names: Sequence[str], overrides: Sequence[str], framework: str | None, engine_version: str,
    te_version: str, framework_version: str,
) -> tuple[Job, Document, Framework]:  # fmt: skip
    """Read a job's files within their budget; return (the job, its configuration, its framework).

    names: of the job's files; overrides: beside them.
    """
    paths = [Path(expand_home(name)) for name in names]
    words = [Word(text, 0) for text in overrides]
    files.overrides = launch.parse_overrides(words, Document(), None)[0]
    document, reader = _read_document(files, paths, names, framework)
    if reader is None:
        reader = _recognize_framework(document, names[0])
    document.budget = files.budget
    values = [word for word, (override, _) in zip(words, files.overrides, strict=True) if override not in files.choices]
    _apply_overrides(document, values, reader)
    document.environment |= find_environment(document)
    document.environment |= files.environment
    if reader.resolvers:
        document.resolvers = reader.resolvers
        document.resolved.clear()
    job = Job(target=names[0], framework=reader.title, notes=document.notes, files=tuple(files.read))
    job.reader, job.launch, job.sender = reader.name, document.launch, document.sender
    job.is_in_code = document.is_in_code
    job.is_incomplete, job.replaced = document.is_incomplete, document.replaced
    job.refusals = document.refusals if reader.is_hydra else []
    job.absent = document.absent
    job.takes_flags = "" if overrides or len(paths) > 1 else document.takes_flags
    job.ambiguous = [merge for merge in document.ambiguous if document.takes_from(merge.leaf)]
    _set_defaults(job, document, reader, framework_version, paths[0].parent)
    fill_job(job, document, reader)
    _check_names(job, document, reader)
    table = reader.fork(document, paths[0].parent) or reader.name
    job.unread_keys = list_unread_keys(document, reader, job.defaults, table)
    _set_versions(job, document, engine_version, te_version, paths[0].parent)
    for name, variable in (("dump.on", "DUMP_ON"), ("dump.prompts_only", "PROMPTS_ONLY")):
        if (setting := environment_flag(document, variable)).status != "unknown":
            job.settings[name] = setting
    if job.engine == "vllm" and (setting := environment_flag(document, "VLLM_BATCH_INVARIANT")).status != "unknown":
        job.settings["engine.deterministic"] = setting
    apply_engine_defaults(job)
    job.settings |= {name: Setting(leaf.value, "set", "", leaf) for name, leaf in document.crowded.items()}
    named = {id(unknown_key.leaf) for unknown_key in job.unknown_keys if unknown_key.values}
    job.unknown_keys += [found for found in list_wrong_values(job, document, table) if id(found.leaf) not in named]
    job.issues = find_met_issues(job, document, table)
    job.defaulted = tuple(sorted(clip(name, 60) for name in document.defaulted))
    job.unnamed = tuple(sorted(clip(name, 60) for name in files.unnamed))
    job.gaps, job.lost = _list_gaps(job, document, reader, names[0]), document.lost
    return job, document, reader


def _check_names(job: Job, document: Document, framework: Framework) -> None:
    """Hold the job's keys against the names that the framework's keys have had, and say what that leaves unchecked."""
    if (
        document.is_composed
        or framework.is_engine
        or any(find_framework_data(framework.name, file) for file in KEY_TABLES)
    ):
        return
    names = load_key_names(framework.name)
    how = job.keys_left or (
        f"with the names of keys to {names.date}" if framework.drops_unknown and names else "with known keys, for typos"
    )
    job.keys_left = f"only compared {how}: {job.framework}'s configuration is not here"
    if names is None:
        return
    reported = {id(key.leaf) for key in job.unknown_keys if key.near or key.why or key.values}
    drops = framework.title if framework.drops_unknown else ""
    why = f"no version of {job.framework} to {names.date} has such a key, and {drops} drops it without a word"
    found = [
        replace(unknown_key, dropped_by=drops if unknown_key.near else "")
        for unknown_key in list_unknown_names(document, names, why if drops else "")
    ]
    slips = {id(unknown_key.leaf) for unknown_key in found}
    written: dict[str, Leaf] = {}
    if framework.is_hydra:
        written = document.plain_overrides
        is_own = any("." not in path for path in written) or any("searchpath" in word for word in document.launch)
        stops = "" if is_own else "Hydra refuses a key that the configuration lacks"
    elif framework.open_sections:
        # Other files beside the job's hold keys for its start in a cluster.
        written = {
            path: leaf
            for path, leaf in document.leaves.items()
            if (leaf.file or ".toml").endswith(".toml") and not path.startswith(framework.open_sections)
        }
        stops = f"{job.framework} stops at a key that it lacks"
    if written:
        found += [key for key in list_refused(written, names, job.framework, stops) if id(key.leaf) not in slips]
    # What says more of a key replaces the reader's word that it does not know it.
    told = {id(key.leaf) for key in found} - reported
    job.unknown_keys = [key for key in job.unknown_keys if id(key.leaf) not in told]
    job.unknown_keys += [key for key in found if id(key.leaf) in told]


def _list_gaps(job: Job, document: Document, framework: Framework, name: str) -> dict[str, str]:
    """Return what of the configuration could not be read → why, and what to give. name: the job's first file."""
    gaps = dict(document.gaps)
    if job.takes_flags and job.text("checkpoint.model") is None:
        gaps[f"the arguments of {job.takes_flags}"] = (
            "its command line names the model and more; give them after the file (key=value), or name the script that launches it"
        )
    if document.is_incomplete and not gaps:
        gaps["the configuration"] = document.notes[0] if document.notes else "a file of it could not be read"
    if not gaps and not document.leaves:
        gaps["any setting"] = f"{Path(name).name} has none; name the job's configuration before it"
    engine = job.settings.get("engine.name", Setting())
    keys = [*framework.sources["engine.name"].paths, "engine.name"] if "engine.name" in framework.sources else [""]
    samples = any(setting.status == "set" for field, setting in job.settings.items() if field.startswith("rollout."))
    if not gaps and not engine.is_known and samples and keys[0]:
        why = engine.source if engine.status == "unresolved" else "nothing sets it"
        gaps["which engine the job has"] = f"{keys[0]}: {why}; give it after the file: {keys[0]}=…"
    return gaps


def _set_defaults(job: Job, document: Document, framework: Framework, version: str, folder: Path) -> None:
    """Set the framework's dated defaults. version: the user's word for it; folder: that of the job's first file."""
    table = load_table(framework.fork(document, folder)) or load_table(framework.name)
    if table is None:
        return
    job.framework = table.title
    if version:
        named = FrameworkVersion(version.removeprefix("v"))
        if not named.is_known:
            raise CkptcheckError(
                f"{clip(version)} is no version of {table.title}",
                hint="write a release, 0.7.1, or the date of a commit, 2026-06-05",
            )
    else:
        named = find_framework_version(table, [folder / file for file in job.files], folder)
    if not named.is_known:
        places = {
            key: f"{leaf.file or 'the command line'}:{leaf.line or ''}".rstrip(":")
            for key, leaf in document.leaves.items()
        }
        dated = date_by_removed_keys(table, places)
        named = dated if dated.is_known else named
    job.defaults = DatedDefaults(table, named, " ".join([document.script, *job.files]))


def split_variables(pairs: Sequence[str]) -> dict[str, str]:
    """Split ``NAME=value`` texts. Raises CkptcheckError for one without a name."""
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*|\d+", name):
            raise CkptcheckError(
                f"{clip(pair)} is no NAME=value", hint="write --env MODEL_PATH=/models/x, or --env 1=x"
            )
        variables[name] = value
    return variables


def _split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into (files, overrides). An override has the form of one, and no file has its name."""
    names: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        match = launch.OVERRIDE.fullmatch(argument) or launch.REMOVAL.fullmatch(argument)
        (overrides if match and not os.path.exists(argument) else names).append(argument)
    return names, overrides


def _read_document(
    files: JobFiles, paths: Sequence[Path], names: Sequence[str], framework: str | None
) -> tuple[Document, Framework | None]:
    """Read all files into one document; a later file replaces values of an earlier one.

    Returns (document, framework); the framework is None where neither the caller nor a launch line names it.
    """
    whole = Document()
    reader = list_frameworks().get(framework or "")
    parts = [part for each in list_frameworks().values() for part in each.parts.items()]
    is_split = len(paths) > 1 and all(path.suffix in TOML for path in paths)
    for path, name in zip(paths, names, strict=True):
        if path.suffix in YAML + TOML:
            part = files.document(path, name)
            section = (
                next((section for prefix, section in parts if path.stem.startswith(prefix)), "") if is_split else ""
            )
            # Only a launch line shows that this is the whole configuration of its program.
            part.is_composed = False
            whole.update(part, section)
        elif path.suffix in SHELL:
            part, reader = read_launch_script(files, path, name, list_frameworks(), reader, paths)
            whole.update(part)
        elif path.suffix == ".py":
            part, reader = require_python_job(path, name, files, [reader] if reader else list_frameworks().values())
            part.launch, part.is_in_code = ("python", name), not part.takes_flags
            whole.update(part)
        else:
            raise CkptcheckError(
                f"{name} is neither YAML, TOML, a shell script nor Python",
                hint="ckptcheck reads .yaml, .yml, .toml, .sh and .py",
            )
    return whole, reader


def _recognize_framework(document: Document, name: str) -> Framework:
    """Return the one framework whose keys the document has. name: the file, for messages. Raises CkptcheckError."""
    candidates = [framework for framework in list_frameworks().values() if framework.matches(document)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise CkptcheckError(
            f"{name} could be of {' or '.join(framework.title for framework in candidates)}",
            hint="say which with --framework",
        )
    sections = list(dict.fromkeys(key.partition(".")[0] for key in document.leaves))
    if name.endswith(".toml") and "job" in document.leaves:
        raise CkptcheckError(f"{name} is a gate file, not a job's", hint=f"ckptcheck gate {name} reads it")
    raise CkptcheckError(
        f"{name} does not have the keys of any framework that ckptcheck knows:"
        f" {join_truncated([clip(key, 40) for key in sections], 5) or 'none'}",
        hint=f"say which with --framework: {', '.join(list_frameworks())}",
    )


def _apply_overrides(document: Document, words: Sequence[Word], framework: Framework) -> None:
    """Apply the user's ``key=value`` arguments to the document, in the style of the framework."""
    if framework.style == "flags":
        words = [Word(f"--{word.text.lstrip('+')}", 0) for word in words]
        launch.flags(words, document, None)
    else:
        launch.apply_overrides(words, document, None)


def _set_versions(job: Job, document: Document, engine_version: str, te_version: str, folder: Path) -> None:
    """Set the versions of engine and Transformer Engine: from the user, else from a file that pins them. folder: the job's."""
    for version in (engine_version, te_version):
        if version and not re.fullmatch(r"v?\d\S*", version):
            raise CkptcheckError(f"{clip(version)} is no version", hint="write it as 0.18.1")
    pinned = document.versions.get(job.engine)
    job.engine_version = engine_version.removeprefix("v") or (str(pinned.value) if pinned else "")
    if not job.engine_version and job.engine in PINNED:
        job.engine_version = find_pin_around(PINNED[job.engine], folder)
    te = document.versions.get("transformer_engine")
    job.te_version = te_version or (str(te.value) if te else "")
    if job.engine and job.engine not in ("vllm", "sglang") and job["engine.name"].leaf is not None:
        leaf = job["engine.name"].leaf
        near = find_closest_name(job.engine, frozenset(PINNED))
        why = f"{clip(job.engine, 40)} is no engine that ckptcheck knows"
        job.unknown_keys.append(UnknownKey(leaf, why, near, values=("vllm", "sglang") if near else ()))
