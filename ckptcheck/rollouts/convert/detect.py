"""Recognises the kind of a file by its content, and calls the converter of that kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.frameworks.areal import rollouts as areal
from ckptcheck.frameworks.nemo_rl import rollouts as nemo_rl
from ckptcheck.frameworks.openrlhf import rollouts as openrlhf
from ckptcheck.frameworks.pipelinerl import rollouts as pipelinerl
from ckptcheck.frameworks.prime_rl import rollouts as prime_rl
from ckptcheck.frameworks.roll import rollouts as roll
from ckptcheck.frameworks.skyrl import rollouts as skyrl
from ckptcheck.frameworks.slime import rollouts as slime
from ckptcheck.frameworks.trl import rollouts as trl
from ckptcheck.frameworks.verl import rollouts as verl
from ckptcheck.rollouts.build import Rollout, UnusableSequence, build_rollouts
from ckptcheck.rollouts.convert import responses, streams
from ckptcheck.rollouts.convert.reading import WRONG_FIELD_ERRORS
from ckptcheck.rollouts.json_text import NotJSON, parse_json, read_text, to_printable
from ckptcheck.rollouts.metadata import Metadata, SamplingInfo, ScorerInfo
from ckptcheck.rollouts.rollouts import Rollouts
from ckptcheck.text.file_io import open_regular_stream
from ckptcheck.text.formatting import join_truncated

MOST_TEXT = 1 << 32
"""Bytes of the largest JSON file that is converted."""
LONGEST_FOOTER = 1 << 20
"""How many bytes of the end of a Parquet file are read for the names of its columns."""
ConvertedRollouts = tuple[list[Rollout | UnusableSequence], Metadata]

KINDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], ConvertedRollouts]]] = {
    "slime": (slime.is_rollout, slime.rollout),
    "slime-train": (slime.is_train, slime.train),
    "verl": (verl.is_batch, verl.batch),
    "roll": (roll.is_batch, roll.batch),
    "skyrl": (skyrl.is_batch, skyrl.batch),
    "trl": (trl.is_batch, trl.batch),
    "openrlhf": (openrlhf.is_experience, openrlhf.experience),
    "areal": (areal.is_trajectory, areal.trajectory),
    "nemo-rl": (nemo_rl.is_step, nemo_rl.step),
    "pipelinerl": (pipelinerl.is_stream, pipelinerl.stream),
    "prime-rl": (prime_rl.is_export, prime_rl.export),
    "sglang": (responses.is_sglang, responses.sglang),
    "vllm": (responses.is_vllm, responses.vllm),
}
"""Kind → a function that recognises a file's content, and the function that converts it.

The content is the unpickled object of a pickle, or the list of objects of a JSON file.
"""
JSON = ("nemo-rl", "pipelinerl", "prime-rl", "sglang", "vllm")
STEP_OF_NAME: dict[str, Callable[[Path], int | None]] = {"nemo-rl": nemo_rl.step_of_name, "skyrl": skyrl.step_of_name}
"""Kind → a function that returns the step, from 0, that the name of a file says."""
TRL_HINT = "save the batch: torch.save(batch, PATH), of what GRPOTrainer._generate_and_score_completions returns"
TEXT_DUMPS: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (verl.is_text_dump, "verl", "save the batch: batch.save_to_disk(PATH)"),
    (roll.is_text_dump, "ROLL", "save the batch: torch.save(dict(batch.batch.items()), PATH)"),
    (areal.is_text_dump, "AReaL", "save the trajectories: torch.save(rollout_batch, PATH), after compute_logp"),
    (trl.is_text_dump, "TRL", TRL_HINT),
)
"""A function that recognises lines that hold texts, the framework, and how to keep the tokens."""


def convert(paths: Sequence[Path], kind: str | None = None) -> tuple[Rollouts, str]:
    """Convert files of one kind into one set of rollouts, in the order of the files. Return the rollouts and the kind.

    paths: files, or folders whose .jsonl files are read. kind: a key of KINDS; None recognises it by the content.
    Raises CkptcheckError where a file is of no known kind, the files are of two kinds or of two steps, or no sequence could be
    converted.
    """
    sequences: list[Rollout | UnusableSequence] = []
    kinds: dict[str, Path] = {}
    metadata_by_file: list[Metadata] = []
    steps: dict[int, Path] = {}
    for path in files(paths):
        content, pickled = _load_content(path)
        file_kind = kind or _detect_kind(content, pickled, path)
        _require_one_value({file_kind: path} | kinds, "{} is of {}")
        kinds.setdefault(file_kind, path)
        if (file_kind in JSON) is pickled:
            raise CkptcheckError(f"{path} is {'a pickle' if pickled else 'JSON'}, and {file_kind} writes the other")
        rollouts, metadata = _convert_content(path, file_kind, content)
        if metadata.step is None and file_kind in STEP_OF_NAME:
            metadata = msgspec.structs.replace(metadata, step=STEP_OF_NAME[file_kind](path))
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
            f"no sequence of {join_truncated([str(path) for path in paths])} could be taken over{reason}"
        )
    return converted, next(iter(kinds))


def _require_one_value(files_by_value: Mapping[Any, Path], sentence: str) -> None:
    """Raise CkptcheckError where the files have more than one value of something that they must have in common.

    files_by_value: value → a file that has it. sentence: a clause with places for the file and the value.
    """
    if len(files_by_value) > 1:
        clauses = [sentence.format(path, value) for value, path in files_by_value.items()]
        raise CkptcheckError(f"{' and '.join(clauses)}: they are no rollouts of one step", hint="convert one at a time")


def _convert_content(path: Path, kind: str, content: Any) -> ConvertedRollouts:
    try:
        return KINDS[kind][1](content)
    except KeyError as error:
        reason = f": it has no {clip(str(error.args[0]))}"
    except UnusableSequence as error:
        reason = f": {error}"
    except WRONG_FIELD_ERRORS:
        reason = ""
    raise CkptcheckError(f"{path} is not laid out as {kind} does it{reason}")


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
    """Return a file's content (see KINDS), and whether it is a pickle."""
    try:
        with open_regular_stream(path) as file:
            magic = file.read(4)
            if magic == b"PAR1":
                file.seek(max(4, path.stat().st_size - LONGEST_FOOTER))
                _refuse_parquet(path, trl.list_parquet_columns(file.read()))
            if magic[:2] == b"PK" or magic[:1] == b"\x80":
                from ckptcheck.checkpoint.torch_file import read_torch_file

                return read_torch_file(path), True
            file.seek(0)
            raw = b"".join(read_text(file, MOST_TEXT))
        return _parse_objects(streams.events(raw)), False
    except FileNotFoundError:
        raise CkptcheckError(f"{path} does not exist") from None
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error
    except NotJSON as error:
        raise CkptcheckError(f"{path} is neither a torch.save file nor JSON: {clip(str(error))}") from error


def _refuse_parquet(path: Path, columns: Sequence[str]) -> NoReturn:
    """Raise CkptcheckError with what the file holds: texts, where TRL logged completions."""
    if set(columns) >= trl.TEXT_KEYS:
        raise CkptcheckError(
            f"{path} holds completions that TRL logged, with the columns {join_truncated(columns, 12)}: "
            "there are no token ids and no logprobs in it",
            hint=TRL_HINT,
        )
    raise CkptcheckError(f"{path} is a Parquet file, which no rollouts that are known are stored in")


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
    for kind, (is_kind, _) in KINDS.items():
        if (kind in JSON) is not pickled and is_kind(content):
            return kind
    for is_text_dump, framework, hint in TEXT_DUMPS:
        if not pickled and is_text_dump(content):
            raise CkptcheckError(
                f"{path} is a dump of {framework}'s that holds texts: there are no token ids and no logprobs in it",
                hint=hint,
            )
    if content == []:
        raise CkptcheckError(f"{path} holds nothing")
    first = content[0] if isinstance(content, list) and content else content
    keys = join_truncated([to_printable(key) for key in first], 6) if isinstance(first, dict) else "no object"
    raise CkptcheckError(
        f"{path} is no rollout file that is known; it holds {clip(keys)}", hint=f"known are {', '.join(KINDS)}"
    )
