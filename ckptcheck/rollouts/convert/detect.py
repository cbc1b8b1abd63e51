"""Tells what a file is by what is in it, and hands it to the one that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.checkpoint.document import clipped
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import few
from ckptcheck.rollouts.build import Misfit, Rollout, gathered
from ckptcheck.rollouts.convert import prime_rl, responses, slime, streams, verl
from ckptcheck.rollouts.convert.reading import ODD
from ckptcheck.rollouts.json_text import NotJson, loaded, word
from ckptcheck.rollouts.metadata import Metadata, Sampling, Side
from ckptcheck.rollouts.rollouts import Rollouts

Taken = tuple[list[Rollout | Misfit], Metadata]

KINDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Taken]]] = {
    "slime": (slime.is_rollout, slime.rollout),
    "slime-train": (slime.is_train, slime.train),
    "verl": (verl.is_batch, verl.batch),
    "prime-rl": (prime_rl.is_export, prime_rl.export),
    "sglang": (responses.is_sglang, responses.sglang),
    "vllm": (responses.is_vllm, responses.vllm),
}
"""Name → whether a file's content is that, and what reads it. The content: of pickles the object, of JSON a list of objects."""
JSON = ("prime-rl", "sglang", "vllm")


def convert(paths: Sequence[Path], kind: str | None = None) -> tuple[Rollouts, str]:
    """Read files of one kind, one after the other, into one; a folder stands for the .jsonl files in it. Return also the kind.

    Raises CkptcheckError with one sentence where a file is none of the kinds, files are of two kinds or of two steps, or no
    sequence could be taken over.
    """
    taken: list[Rollout | Misfit] = []
    kinds: dict[str, Path] = {}
    about: list[Metadata] = []
    steps: dict[int, Path] = {}
    for path in files(paths):
        content, pickled = _content(path)
        own = kind or _kind(content, pickled, path)
        _one({own: path} | kinds, "{} is of {}")
        kinds.setdefault(own, path)
        if (own in JSON) is pickled:
            raise CkptcheckError(f"{path} is {'a pickle' if pickled else 'JSON'}, and {own} writes the other")
        rollouts, metadata = _read(path, own, content)
        if metadata.step is not None:
            steps.setdefault(metadata.step, path)
            _one(steps, "{} is of step {}")
        taken += rollouts
        about.append(metadata)
    found = gathered(taken, shared(about))
    if not found.number:
        left = found.metadata.left_out
        why = f": {left[0].reason}" if left else ": there is none"
        raise CkptcheckError(f"no sequence of {few([str(path) for path in paths])} could be taken over{why}")
    return found, next(iter(kinds))


def _one(found: Mapping[Any, Path], sentence: str) -> None:
    """Raise CkptcheckError where files differ in what all have to have in common."""
    if len(found) > 1:
        said = [sentence.format(path, value) for value, path in found.items()]
        raise CkptcheckError(f"{' and '.join(said)}: they are no rollouts of one step", hint="convert one at a time")


def _read(path: Path, kind: str, content: Any) -> Taken:
    try:
        return KINDS[kind][1](content)
    except KeyError as error:
        what = f": it has no {clipped(str(error.args[0]))}"
    except Misfit as misfit:
        what = f": {misfit}"
    except ODD:
        what = ""
    raise CkptcheckError(f"{path} is not laid out as {kind} does it{what}")


def shared(about: Sequence[Metadata]) -> Metadata:
    """Return what all files say alike; what they disagree about is not known of all of them."""
    first = about[0]
    told = {name: [getattr(each, name) for each in about] for name in first.__struct_fields__}
    unlike = {
        name: getattr(Metadata(), name) for name, values in told.items() if any(each != values[0] for each in values)
    }
    if "sampling" in unlike:
        drawn = [msgspec.structs.asdict(each.sampling) for each in about]
        alike = {name: value for name, value in drawn[0].items() if all(each[name] == value for each in drawn)}
        unlike["sampling"] = Sampling(**alike)
    if "trainer" in unlike and all(each.trainer for each in about):
        # one kind of file has one name for its trainer, and its temperature may differ
        unlike["trainer"] = Side(first.trainer.name) if first.trainer is not None else None
    return msgspec.structs.replace(first, **unlike)


def files(paths: Sequence[Path]) -> list[Path]:
    """Return the files; of a folder the .jsonl files in it. Raises CkptcheckError where there is none."""
    found = [inner for path in paths for inner in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    if not found:
        raise CkptcheckError(f"{few([str(path) for path in paths])} holds no .jsonl file")
    return found


def _content(path: Path) -> tuple[Any, bool]:
    """Return what a file holds, and whether it is a pickle."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
            if start == b"PK" or start[:1] == b"\x80":
                from ckptcheck.checkpoint.torch_file import read_torch

                return read_torch(path), True
        return _objects(streams.events(path.read_bytes())), False
    except FileNotFoundError:
        raise CkptcheckError(f"{path} does not exist") from None
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error
    except NotJson as error:
        raise CkptcheckError(f"{path} is neither a torch.save file nor JSON: {clipped(str(error))}") from error


def _objects(raw: bytes) -> list[Any]:
    """Return the objects of JSON lines, of a JSON list, or the one object. Raises NotJson.

    A line that is no JSON, such as the last of a file that was cut off, becomes a Misfit; the first has to be JSON.
    """
    try:
        whole = loaded(raw)
        return whole if isinstance(whole, list) else [whole]
    except NotJson:
        lines = [line for line in raw.splitlines() if line.strip()]
        if len(lines) == 1:
            raise
    found: list[Any] = []
    for line in lines:
        try:
            found.append(loaded(line))
        except NotJson as error:
            if not found:
                raise
            found.append(Misfit(f"it is no JSON: {error}"))
    return found


def _kind(content: Any, pickled: bool, path: Path) -> str:
    if not pickled and responses.is_mixed(content):
        raise CkptcheckError(
            f"{path} holds answers of SGLang beside answers of another engine",
            hint="convert those of each by themselves",
        )
    for kind, (recognised, _) in KINDS.items():
        if (kind in JSON) is not pickled and recognised(content):
            return kind
    if not pickled and verl.is_text_dump(content):
        raise CkptcheckError(
            f"{path} is a dump of verl's that holds texts: there are no token ids and no logprobs in it",
            hint="save the batch: batch.save_to_disk(PATH)",
        )
    if content == []:
        raise CkptcheckError(f"{path} holds nothing")
    first = content[0] if isinstance(content, list) and content else content
    keys = few([word(key) for key in first], 6) if isinstance(first, dict) else "no object"
    raise CkptcheckError(
        f"{path} is no rollout file that is known; it holds {clipped(keys)}", hint=f"known are {', '.join(KINDS)}"
    )
