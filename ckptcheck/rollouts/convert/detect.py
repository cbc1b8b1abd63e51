"""Recognises the kind of a file by its content, and calls the converter of that kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.framework_folders import list_frameworks_with, load_framework_file
from ckptcheck.rollouts.build import Rollout, UnusableSequence, build_rollouts
from ckptcheck.rollouts.convert import responses
from ckptcheck.rollouts.convert.format import ConvertedRollouts, RolloutFormat, TextDump
from ckptcheck.rollouts.convert.reading import WRONG_FIELD_ERRORS
from ckptcheck.rollouts.json_text import NotJSON, parse_json, read_text, to_printable
from ckptcheck.rollouts.metadata import Metadata, SamplingInfo, ScorerInfo
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.text.file_io import open_regular_stream
from ckptcheck.text.formatting import join_truncated

MOST_TEXT = 1 << 32
"""Bytes of the largest JSON file that is converted."""


@cache
def list_formats() -> Mapping[str, RolloutFormat]:
    """Return the formats of all frameworks by name; each folder of ckptcheck/frameworks/ names its own."""
    return {each.name: each for module in _load_modules() for each in module.FORMATS}


def _list_text_dumps() -> list[TextDump]:
    return [dump for module in _load_modules() for dump in getattr(module, "TEXT_DUMPS", ())]


def _load_modules() -> list[Any]:
    return [load_framework_file(name, "rollouts") for name in list_frameworks_with("rollouts")]


def convert(paths: Sequence[Path], kind: str | None = None) -> tuple[Rollouts, str]:
    """Convert files of one kind into one set of rollouts, in the order of the files. Return the rollouts and the kind.

    paths: files, or folders whose .jsonl files are read. kind: a format's name; None recognises it by the content.
    Raises CkptcheckError where a file is of no known kind, the files are of two kinds or of two steps, or no sequence could be
    converted.
    """
    formats = list_formats()
    sequences: list[Rollout | UnusableSequence] = []
    kinds: dict[str, Path] = {}
    metadata_by_file: list[Metadata] = []
    steps: dict[int, Path] = {}
    for path in files(paths):
        content, pickled = _load_content(path)
        file_kind = kind or _detect_kind(content, pickled, path)
        _require_one_value({file_kind: path} | kinds, "{} is of {}")
        kinds.setdefault(file_kind, path)
        if (used := formats[file_kind]).is_json is pickled:
            raise CkptcheckError(
                f"{path} is {'a pickle' if pickled else 'JSON'}, and {file_kind} writes {'JSON' if pickled else 'pickles'}"
            )
        rollouts, metadata = _convert_content(path, used, content)
        if metadata.step is None and used.step_of_name is not None:
            metadata = msgspec.structs.replace(metadata, step=used.step_of_name(path))
        if metadata.step is not None:
            steps.setdefault(metadata.step, path)
            _require_one_value(steps, "{} is of step {}")
        sequences += rollouts
        metadata_by_file.append(metadata)
    converted = build_rollouts(sequences, shared(metadata_by_file))
    if not converted.sequence_count:
        left_out = converted.metadata.left_out
        reason = f": {left_out[0].reason}" if left_out else ": there is none"
        raise CkptcheckError(
            f"no sequence of {join_truncated([str(path) for path in paths])} could be converted{reason}"
        )
    return converted, next(iter(kinds))


def _require_one_value(files_by_value: Mapping[Any, Path], sentence: str) -> None:
    """Raise CkptcheckError where the files have more than one value of something that they must have in common.

    files_by_value: value → a file that has it. sentence: a clause with places for the file and the value.
    """
    if len(files_by_value) > 1:
        clauses = [sentence.format(path, value) for value, path in files_by_value.items()]
        raise CkptcheckError(
            f"{' and '.join(clauses)}: they are not rollouts of one step", hint="convert one at a time"
        )


def _convert_content(path: Path, used: RolloutFormat, content: Any) -> ConvertedRollouts:
    try:
        return used.convert(content)
    except KeyError as error:
        reason = f": it has no {clip(str(error.args[0]))}"
    except UnusableSequence as error:
        reason = f": {error}"
    except WRONG_FIELD_ERRORS:
        reason = ""
    raise CkptcheckError(f"{path} has another layout than {used.name} writes{reason}")


def shared(metadata_by_file: Sequence[Metadata]) -> Metadata:
    """Merge the metadata of several files: a field keeps its value where all files agree, else it gets its default."""
    first = metadata_by_file[0]
    values_by_name = {
        name: [getattr(file_metadata, name) for file_metadata in metadata_by_file] for name in first.__struct_fields__
    }
    differing = {
        name: getattr(Metadata(), name)
        for name, values in values_by_name.items()
        if any(value != values[0] for value in values)
    }
    if "sampling" in differing:
        samplings = [msgspec.structs.asdict(file_metadata.sampling) for file_metadata in metadata_by_file]
        common = {
            name: value
            for name, value in samplings[0].items()
            if all(sampling[name] == value for sampling in samplings)
        }
        differing["sampling"] = SamplingInfo(**common)
    if "trainer" in differing and all(file_metadata.trainer for file_metadata in metadata_by_file):
        # files of one kind name the same trainer, and only its temperature may differ
        differing["trainer"] = ScorerInfo(first.trainer.name) if first.trainer is not None else None
    return msgspec.structs.replace(first, **differing)


def files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and for a folder the .jsonl files in it. Raises CkptcheckError where there is no file."""
    matches = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    if not matches:
        raise CkptcheckError(f"{join_truncated([str(path) for path in paths])} holds no .jsonl file")
    return matches


def _load_content(path: Path) -> tuple[Any, bool]:
    """Return a file's content (see RolloutFormat), and whether it is a pickle."""
    try:
        with open_regular_stream(path) as file:
            magic = file.read(4)
            if magic == b"PAR1":
                raise CkptcheckError(
                    f"{path} is a Parquet file, in which frameworks log texts: there are no token ids and no logprobs in it",
                    hint="save the batch that the trainer takes; docs/rollouts.md says how",
                )
            if magic[:2] == b"PK" or magic[:1] == b"\x80":
                from ckptcheck.checkpoint.torch_file import read_torch_file

                return read_torch_file(path), True
            file.seek(0)
            raw = b"".join(read_text(file, MOST_TEXT))
        return _parse_objects(raw), False
    except FileNotFoundError:
        raise CkptcheckError(f"{path} does not exist") from None
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error
    except NotJSON as error:
        raise CkptcheckError(f"{path} is neither a torch.save file nor JSON: {clip(str(error))}") from error


def _parse_objects(raw: bytes) -> list[Any]:
    """Return the objects of JSON lines or of a JSON list, or the one JSON object. Raises NotJSON.

    A line that is not JSON, such as the last line of a truncated file, becomes an UnusableSequence; the first line must be JSON.
    """
    try:
        content = parse_json(raw)
        return content if isinstance(content, list) else [content]
    except NotJSON:
        lines = [line for line in raw.splitlines() if line.strip()]
        if len(lines) == 1:
            raise
    objects: list[Any] = []
    for line in lines:
        try:
            objects.append(parse_json(line))
        except NotJSON as error:
            if not objects:
                raise
            objects.append(UnusableSequence(f"it is no JSON: {error}"))
    return objects


def _detect_kind(content: Any, pickled: bool, path: Path) -> str:
    if not pickled and responses.is_mixed(content):
        raise CkptcheckError(
            f"{path} holds answers of SGLang beside answers of another engine",
            hint="convert those of each by themselves",
        )
    for each in list_formats().values():
        if each.is_json is not pickled and each.matches(content):
            return each.name
    for dump in _list_text_dumps():
        if not pickled and dump.matches(content):
            raise CkptcheckError(
                f"{path} is a dump of {dump.framework}'s that holds texts: there are no token ids and no logprobs in it",
                hint=dump.hint,
            )
    if content == []:
        raise CkptcheckError(f"{path} holds nothing")
    first = content[0] if isinstance(content, list) and content else content
    keys = join_truncated([to_printable(key) for key in first], 6) if isinstance(first, dict) else "no object"
    raise CkptcheckError(
        f"{path} is no rollout file that ckptcheck knows; it holds {clip(keys)}",
        hint=f"ckptcheck knows {', '.join(list_formats())}",
    )
