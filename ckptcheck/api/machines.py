"""Spreads scans and comparisons over machines, part by part."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.api.arguments import PartVerb, StrPath, require_choice, require_ranges
from ckptcheck.api.checkpoints import prepare_scan, scan_all
from ckptcheck.api.comparisons import diff, manifest, open_comparison, verify
from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import EvidenceError, UsageError
from ckptcheck.text.formatting import join_words
from ckptcheck.text.observer import SILENT, Observer

if TYPE_CHECKING:
    from ckptcheck.compare.manifest import Manifest
    from ckptcheck.linter.report import Reports

FUNCTIONS: dict[str, Callable[..., Any]] = {"scan": scan_all, "manifest": manifest, "verify": verify, "diff": diff}
"""Verb that has parts → its function."""


def write_part(
    verb: PartVerb,
    *targets: StrPath,
    part: str,
    folder: StrPath,
    jobs: int | None = None,
    observer: Observer = SILENT,
    **options: Any,
) -> StrPath:
    """Compute one part of what a verb reads and write it to a folder, which machines share; `join` makes the report of all parts.

    Args:
        verb: scan, manifest, verify or diff.
        targets: the arguments of the verb that have no name: checkpoints, and the manifest of verify.
        part: which part of how many: ``0/8`` to ``7/8``.
        folder: where the parts are written, also ``s3://bucket/folder``. What an earlier run wrote there of the same files is
            not computed again.
        jobs: threads of this process; None: as many as there are cores, more where bytes come over the network.
        observer: receives messages and progress.
        options: further arguments of the verb, which `join` uses as well.

    Returns its path, or its address in a store. Raises EvidenceError where not everything could be read: the part is there, and a
    rerun reads the rest.
    """
    require_choice("verb", verb, PartVerb)
    require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.objects.part_folder import open_part_folder
    from ckptcheck.runners.parts import PartWriter
    from ckptcheck.scanning import run_passes
    from ckptcheck.text.addresses import is_remote_address
    from ckptcheck.text.formatting import format_bytes

    function = FUNCTIONS[verb]
    names = [os.fspath(target) for target in targets]
    if verb == "scan" and any(map(is_remote_address, names)):
        options["values"] = True
    defaults = inspect.signature(function).parameters
    for name in options.keys() - defaults.keys():
        raise UsageError(f"{verb} takes no {name}")
    given = {
        name: [*map(_plain, value)] if isinstance(value, (list, tuple)) else _plain(value)
        for name, value in options.items()
        if value not in (None, defaults[name].default) and value != []
    }
    if given.get("headers_only") or given.get("fix") or given.get("dry_load"):
        raise UsageError(
            "parts are of values: --headers-only, --fix and --dry-load have no effect on one",
            hint="scan without --part",
        )
    writer = PartWriter(open_part_folder(os.fspath(folder)), part, verb, {"*": names, **given}, jobs=jobs)
    with observer.progress(f"part {part}") as progress:
        if verb == "scan":
            defaulted = {name: one.default for name, one in defaults.items() if one.kind is one.KEYWORD_ONLY}
            arguments = {**defaulted, **given, "targets": names, "jobs": jobs, "runner": writer, "observer": observer}
            found, request, _, _ = prepare_scan(**arguments)
            run_passes(found, request)
        elif verb == "diff":
            defaulted = {name: one.default for name, one in defaults.items() if name not in ("observer", "pictures")}
            comparison = open_comparison(
                **{**defaulted, **given, "first": names[0], "second": names[1], "jobs": jobs, "runner": writer},
                progress=progress,
            )
            _ = comparison.value_differences
        else:
            function(*names, **given, jobs=jobs, runner=writer, observer=observer)
    path = writer.write()
    known = f", {format_bytes(writer.known)} known from before" if writer.known else ""
    observer.log(f"part {part} written to {path}: {format_bytes(writer.computed)} read{known}")
    return path if is_remote_address(path) else Path(path)


OF_THE_CALLER = frozenset(("jobs", "runner", "observer", "output", "pictures"))
"""Arguments that whoever joins parts gives, and no part."""
FROM_TRUSTED_PARTS = frozenset(
    (
        "rules", "config", "fix", "stats", "baseline", "write_baseline", "signature", "public_key", "certificate_chain", "signer",
        "oidc_issuer", "trust_config", "attach", "allow_remote", "engine_python", "dry_load",
    )
)  # fmt: skip
"""Arguments that run code, write files, ask servers, or say whom to trust: a folder of parts may be somebody else's."""


def join(
    folder: StrPath,
    output: StrPath | None = None,
    *,
    trust_parts: bool = False,
    jobs: int | None = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> Reports | Manifest:
    """Return what a verb returns, from the parts that `write_part` wrote to a folder.

    Rules run here; they read headers, and single pieces of tensors, from the checkpoint.

    Args:
        folder: the folder of the parts, also ``s3://bucket/folder``.
        output: file or ``s3://…`` that a manifest is written to; None: none. Reports are written by whoever asks for them.
        trust_parts: take arguments from the parts that run code, write files or say whom to trust: rules, config, ….
        jobs: files read at a time; None: as many as there are cores.
        pictures: draw what was found, for a notebook.
        observer: receives messages and progress.

    Raises EvidenceError where a part is missing, doubled, of another plan or version, with the command that runs it again.
    """
    require_ranges(jobs=jobs)
    from ckptcheck.checkpoint.objects.part_folder import open_part_folder
    from ckptcheck.linter.report import Reports
    from ckptcheck.runners.parts import Parts

    parts = Parts(open_part_folder(os.fspath(folder)))
    verb, recorded = parts.read_command()
    names, arguments = _read_arguments(verb, recorded, is_trusted=trust_parts)
    if verb == "scan":
        return scan_all(names, **arguments, jobs=jobs, runner=parts, pictures=pictures, observer=observer)
    if verb == "manifest":
        return manifest(names[0], output, **arguments, jobs=jobs, runner=parts, observer=observer)
    report = FUNCTIONS[verb](*names, **arguments, jobs=jobs, runner=parts, pictures=pictures, observer=observer)
    return Reports((report,))


def _read_arguments(verb: str, recorded: Mapping[str, Any], *, is_trusted: bool) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments without a name and the others that parts record. Raises EvidenceError for those that are not taken."""
    if verb not in FUNCTIONS:
        raise EvidenceError(f"the parts are of the unknown command {clip(verb)}")
    parameters = inspect.signature(FUNCTIONS[verb]).parameters
    names = recorded.get("*")
    most = sum(one.kind is one.POSITIONAL_OR_KEYWORD and name != "output" for name, one in parameters.items())
    least = sum(one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty for one in parameters.values())
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not least <= len(names):
        raise EvidenceError(f"the parts name no target of {verb}")
    if verb != "scan" and len(names) > most:
        raise EvidenceError(f"the parts name more targets than {verb} takes")
    arguments = {name: value for name, value in recorded.items() if name != "*"}
    for name, value in arguments.items():
        default = (
            parameters[name].default if name in parameters and name not in OF_THE_CALLER else inspect.Parameter.empty
        )
        if default is inspect.Parameter.empty or not _is_like(value, default):
            raise EvidenceError(
                f"the parts have an argument that {verb} does not take: {clip(name)}={clip(str(value))}"
            )
    if given := [] if is_trusted else sorted(arguments.keys() & FROM_TRUSTED_PARTS):
        options = join_words([f"--{name.replace('_', '-')} {clip(str(arguments[name]))}" for name in given])
        raise EvidenceError(
            f"the parts were made with {options}, which can run code, write files or say whom to trust",
            hint="give --trust-parts to join if nobody but you writes to the folder of the parts",
        )
    return names, arguments


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of an argument's default; a default of None and of () stand for paths and words."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, (int, float))
    if isinstance(default, str):
        return isinstance(value, str)
    words = value if isinstance(value, list) else [value]
    return all(isinstance(word, str) for word in words)


def _plain(value: Any) -> Any:
    """Return a value as a part records it."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value
