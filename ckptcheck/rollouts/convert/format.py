"""What a framework's folder says of the files in which it keeps rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.metadata import Metadata

ConvertedRollouts = tuple[list[Rollout | UnusableSequence], Metadata]


@dataclass(frozen=True)
class RolloutFormat:
    """A kind of file that holds rollouts: its name for ``--from``, how it is recognised and how it is converted.

    The content that both functions take is the unpickled object of a pickle, or the list of objects of a JSON file.
    """

    name: str
    matches: Callable[[Any], bool]
    convert: Callable[[Any], ConvertedRollouts]
    is_json: bool = False
    """Whether the file is JSON; if not, it is a pickle."""
    step_of_name: Callable[[Path], int | None] | None = None
    """Returns the step, from 0, that the name of a file says."""


@dataclass(frozen=True)
class TextDump:
    """A kind of file that holds texts without token ids or logprobs, which therefore cannot be converted."""

    framework: str
    """Whose file it is, for messages."""
    matches: Callable[[Any], bool]
    hint: str
    """How to keep the tokens."""
