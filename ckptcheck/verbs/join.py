"""``--part I/N`` computes a part of a verb on one machine; ``ckptcheck join`` makes the report of all parts."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError, EvidenceError, UsageError
from ckptcheck.linter.late_import import load_function
from ckptcheck.text.formatting import join_words
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import Argument, Jobs, Option, StrPath
from ckptcheck.verbs.settings import parse_written
from ckptcheck.verbs.verb import Verb, find_verb, verb

if TYPE_CHECKING:
    from ckptcheck.compare.manifest import Manifest
    from ckptcheck.linter.report import Reports

WITH_PARTS = ("scan", "manifest", "verify", "diff")
"""Verbs that have parts."""
UNUSED = {
    "manifest": (),
    "scan": ("headers_only", "fix", "dry_load"),
    "verify": (
        "signature", "public_key", "certificate_chain", "signer", "oidc_issuer", "trust_config", "allow_expired",
        "ignore_unsigned_files",
    ),
    "diff": (),
}  # fmt: skip
"""Verb → arguments that have no effect on a part."""


def _find(name: str) -> tuple[Callable[..., Any], Verb]:
    function = load_function(f"ckptcheck.verbs.{name}:{name}")
    return function, find_verb(function)


def write_part(
    verb: str,
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

    Returns its path, or its address in a store. Raises EvidenceError where not everything could be read: the part is there.
    """
    from ckptcheck.checkpoint.objects.part_folder import open_part_folder
    from ckptcheck.runners.parts import PartWriter
    from ckptcheck.text.addresses import is_remote_address
    from ckptcheck.text.formatting import format_bytes

    if verb not in WITH_PARTS:
        raise UsageError(f"verb is one of {', '.join(WITH_PARTS)}, not {verb}")
    function, found = _find(verb)
    names = [os.fspath(target) for target in targets]
    for name in options.keys() - found.parameters.keys():
        raise UsageError(f"{verb} takes no {name}")
    given = {
        name: [*map(_plain, value)] if isinstance(value, (list, tuple)) else _plain(value)
        for name, value in options.items()
        if value not in (None, found.parameters[name].default) and value != []
    }
    if useless := [found.parameters[name].flag() for name in UNUSED[verb] if name in given]:
        raise UsageError(
            f"{join_words(useless)} {'has' if len(useless) == 1 else 'have'} no effect with --part: ckptcheck join makes the report"
        )
    if verb == "verify" and len(names) < 2:
        raise UsageError("--part needs a manifest: a signature is verified on one machine")
    recorded = {name: value for name, value in given.items() if name not in found.settings}
    if settings := [f"{name.replace('_', '-')}={given[name]}" for name in given if name in found.settings]:
        recorded["set"] = settings
    writer = PartWriter(open_part_folder(os.fspath(folder)), part, verb, {"*": names, **recorded}, jobs=jobs)
    taken = [names] if verb == "scan" else names
    with observer.progress(f"part {part}"):
        function(*taken, **given, jobs=jobs, runner=writer, observer=observer)
    path = writer.write()
    observer.log(f"part {part} written to {path}: {format_bytes(writer.computed)} read")
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


@verb()
def join(
    folder: Annotated[
        StrPath, Argument("The folder, or s3:// address, that --part wrote to with -o.", metavar="FOLDER")
    ],
    output: StrPath | None = None,
    *,
    trust_parts: Annotated[
        bool,
        Option(
            "Take options from the parts that run code, write files or say whom to trust: --rules, --config, --stats."
        ),
    ] = False,
    jobs: Jobs = None,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Reports | Manifest":
    """Make the report, or the manifest, of parts that several machines computed.

    Exit codes: those of the verb; 2 where a part is missing, doubled, or of something else.

    Returns what the verb returns. Rules run here; they read headers, and single pieces of tensors, from the checkpoint. Raises
    EvidenceError where a part is missing, doubled, of another plan or version, with the command that runs it again.
    """
    from ckptcheck.checkpoint.objects.part_folder import open_part_folder
    from ckptcheck.linter.report import Report, Reports
    from ckptcheck.runners.parts import Parts

    parts = Parts(open_part_folder(os.fspath(folder)))
    name, recorded = parts.read_command()
    names, arguments = _read_arguments(name, recorded, is_trusted=trust_parts)
    function, found = _find(name)
    taken = [names] if name == "scan" else names
    if "output" in found.parameters:
        arguments["output"] = output
    if "pictures" in found.parameters:
        arguments["pictures"] = pictures
    result = function(*taken, **arguments, jobs=jobs, runner=parts, observer=observer)
    return Reports((result,)) if isinstance(result, Report) else result


def _read_arguments(verb: str, recorded: Mapping[str, Any], *, is_trusted: bool) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments without a name and the others that parts record. Raises EvidenceError for those that are not taken."""
    if verb not in WITH_PARTS:
        raise EvidenceError(f"the parts are of the unknown command {clip(verb)}")
    found = _find(verb)[1]
    parameters = found.signature.parameters
    names = recorded.get("*")
    most = sum(one.kind is one.POSITIONAL_OR_KEYWORD and name != "output" for name, one in parameters.items())
    least = sum(one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty for one in parameters.values())
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not least <= len(names):
        raise EvidenceError(f"the parts name no target of {verb}")
    if verb != "scan" and len(names) > most:
        raise EvidenceError(f"the parts name more targets than {verb} takes")
    arguments = {name: value for name, value in recorded.items() if name not in ("*", "set")}
    arguments |= _read_settings(recorded.get("set", []), found)
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


def _read_settings(words: Any, verb: Verb) -> dict[str, Any]:
    """Return the settings that parts record as ``NAME=VALUE``."""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise EvidenceError(f"the parts have settings that {verb.name} does not take: {clip(str(words))}")
    try:
        return parse_written(words, verb.settings, verb.name)
    except CkptcheckError as error:
        raise EvidenceError(f"the parts have settings that {verb.name} does not take: {error.message}") from error


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of an argument's default; a default of None and of () stand for paths and words."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, (int, float))
    if isinstance(default, str):
        return isinstance(value, str)
    words = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(word, str) for word in words)


def _plain(value: Any) -> Any:
    """Return a value as a part records it."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value
