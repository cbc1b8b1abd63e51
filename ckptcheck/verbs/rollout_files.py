"""Reads rollouts of any kind, and the tokenizers that decode their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.rollouts import Rollouts


def list_sources() -> list[str]:
    """Return what `read_rollout_files` takes as a source: the formats of all frameworks, and our own."""
    from ckptcheck.rollouts.convert import list_formats

    return [*list_formats(), "ckptcheck"]


def load_decoder(folder: Path) -> Callable[[Sequence[int]], str]:
    """Return a function from token ids to their text. Raises CkptcheckError if no tokenizer.json can be read."""
    from ckptcheck.checkpoint.open_tokenizer import FILE, open_tokenizer, read_tokenizer_file

    tokenizer = open_tokenizer(read_tokenizer_file(folder), str(folder / FILE if folder.is_dir() else folder))
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def read_rollout_files(paths: list[Path], source: str | None) -> tuple[Rollouts, str]:
    """Read the rollouts of a framework, or our own; return them and what wrote them."""
    from ckptcheck.rollouts import read_rollouts
    from ckptcheck.rollouts.convert import convert
    from ckptcheck.rollouts.lines import is_rollout_lines

    is_own = source is None and (paths[0].suffix == ".safetensors" or is_rollout_lines(paths[0]))
    if not is_own and source != "ckptcheck":
        return convert(paths, source)
    rollouts = read_rollouts(paths[0])
    if rollouts.defects or len(paths) > 1:
        what = (
            f"is malformed: {rollouts.defects[0].text}" if rollouts.defects else "is one of several; give one at a time"
        )
        raise CkptcheckError(f"{paths[0]} {what}")
    return rollouts, "ckptcheck"
