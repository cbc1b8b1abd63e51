"""Which counters of a save say its step, and which only rise."""

from __future__ import annotations

import re

from ckptcheck.runs.saves.save import Save

EXACT = {
    "iter": re.compile(r"(^|/)(common\.pt|model_optim_rng\.pt): iteration$"),
    "checkpoint": re.compile(r"(^|/)trainer_state\.json: global_step$"),
}
"""What a folder's name calls its step → the counter that is the same number, as the trainers with such folders write it."""


def find_step_counter(save: Save) -> tuple[str, float] | None:
    """Return the counter that a trainer takes for the step of a save, and its number; None where it has none."""
    pattern = EXACT.get(save.word)
    if pattern is None:
        return None
    return next(((path, value) for path, value in save.counters.items() if pattern.search(path)), None)
