"""Tells what a file is by what is in it, and hands it to the one that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.document import clipped
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import few
from ckptcheck.rollouts.build import Rollout, gathered
from ckptcheck.rollouts.convert import prime_rl, responses, slime, streams, verl
from ckptcheck.rollouts.metadata import Metadata
from ckptcheck.rollouts.rollouts import Rollouts

Taken = tuple[list[Rollout], Metadata]

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

    Raises CkptcheckError with one sentence where a file is none of the kinds, or no sequence could be taken over.
    """
    taken: list[Rollout] = []
    metadata = Metadata()
    for path in _files(paths):
        content, pickled = _content(path)
        kind = kind or _kind(content, pickled, path)
        if (kind in JSON) is pickled:
            raise CkptcheckError(f"{path} is {'a pickle' if pickled else 'JSON'}, and {kind} writes the other")
        try:
            rollouts, about = KINDS[kind][1](content)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            what = f"it has no {error.args[0]}" if isinstance(error, KeyError) else clipped(str(error))
            raise CkptcheckError(f"{path} is not laid out as {kind} does it: {what}") from error
        taken += rollouts
        metadata = about
    found = gathered(taken, metadata)
    if not found.number:
        left = found.metadata.left_out
        why = f": {left[0].reason}" if left else ": there is none"
        raise CkptcheckError(f"no sequence of {few([str(path) for path in paths])} could be taken over{why}")
    return found, kind or ""


def _files(paths: Sequence[Path]) -> list[Path]:
    files = [inner for path in paths for inner in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    if not files:
        raise CkptcheckError(f"{few([str(path) for path in paths])} holds no .jsonl file")
    return files


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
    except (ValueError, RecursionError) as error:
        raise CkptcheckError(f"{path} is neither a torch.save file nor JSON: {clipped(str(error))}") from error


def _objects(raw: bytes) -> list[Any]:
    """Return the objects of JSON lines, of a JSON list, or the one object. Raises ValueError."""
    try:
        whole = json.loads(raw)
        return whole if isinstance(whole, list) else [whole]
    except json.JSONDecodeError:
        return [json.loads(line) for line in raw.splitlines() if line.strip()]


def _kind(content: Any, pickled: bool, path: Path) -> str:
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
    first = content[0] if isinstance(content, list) else content
    keys = few([str(key) for key in first], 6) if isinstance(first, dict) else type(first).__name__
    raise CkptcheckError(
        f"{path} is no rollout file that is known; it holds {clipped(keys)}", hint=f"known are {', '.join(KINDS)}"
    )
