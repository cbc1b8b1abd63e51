"""Draws a job's settings: trainer and engine side by side, then the rest, each with the place where it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.jobs.fields import FIELDS
from ckptcheck.jobs.job import shown
from ckptcheck.linter.pictures import NoPicture, State, TextCell, TextTable

if TYPE_CHECKING:
    from ckptcheck.jobs.job import Job
    from ckptcheck.linter.pictures import Picture

SAME_MEANING = {
    "dtype": ("trainer.dtype", "engine.dtype"),
    "temperature": ("trainer.temperature", "rollout.temperature"),
    "output head in float32": ("trainer.fp32_head", "engine.fp32_head"),
    "deterministic kernels": ("trainer.deterministic", "engine.deterministic"),
    "adapters": ("trainer.lora", "engine.lora"),
    "tokenizer": ("trainer.tokenizer", "engine.tokenizer"),
    "chat template": ("trainer.chat_template", "engine.chat_template"),
}
"""Setting that should be equal on both sides → the trainer's setting, the engine's setting."""
COUNTERPARTS = {
    "program": ("trainer.backend", "engine.name"),
    **SAME_MEANING,
    "tensor parallelism": ("trainer.tp", "engine.tp"),
    "longest sequence": ("trainer.max_length", "engine.max_model_len"),
    "choice of experts": ("trainer.router_replay", "engine.routed_experts"),
    "draft model": ("trainer.trains_draft", "engine.draft"),
    "quantized": ("trainer.fp8", "engine.quantization"),
    "logprobs": ("trainer.plain_logprobs", "engine.logprobs"),
    "sampling filters": ("trainer.filters", "rollout.top_p"),
}
"""Setting that both sides have → the trainer's setting, the engine's setting. The rules judge whether they fit."""
SIDES = {"trainer": 0, "engine": 1, "rollout": 1}
"""First part of a setting's name → the side of the table; all others belong to the job as a whole."""
ANY = {"dtype": frozenset({"auto"})}
"""Row → values that mean: the same as the other side or the checkpoint."""
STATES = (
    State("default", "quiet", "the job does not say it; the program's own value holds"),
    State("differs", "change", "the two sides have different values; the findings say where that is wrong"),
    State("not resolved", "warn", "it is written, and its value is known only when the job runs"),
)


def draw_sides(job: Job, title: str) -> Picture:
    """Draw the known settings of trainer and engine: counterparts in one row, then settings of only one side."""
    paired = {name for pair in COUNTERPARTS.values() for name in pair}
    rows = {label: pair for label, pair in COUNTERPARTS.items() if any(name in job.settings for name in pair)}
    for name in FIELDS:
        side = SIDES.get(name.partition(".")[0])
        if side is not None and name in job.settings and name not in paired:
            rows[name] = (name, "") if side == 0 else ("", name)
    cells = tuple(_describe_row(job, label, pair) for label, pair in rows.items())
    shown_rows = tuple(row for row in cells if any(cell.text for cell in row[1:]))
    if not shown_rows:
        return NoPicture(title, "no setting of either side is known")
    return TextTable(
        title,
        "Below each value stands where it is written. An empty cell: the side has no such setting, or it is not known.",
        ("setting", "trainer", "engine and sampling"),
        shown_rows,
        STATES,
    )


def draw_rest(job: Job, title: str) -> TextTable | None:
    """Draw the settings that belong to neither side; None without a known one."""
    rows = tuple(
        (TextCell(name, note=FIELDS[name][1]), _describe_setting(job, name))
        for name in FIELDS
        if name.partition(".")[0] not in SIDES and _is_shown(job, name)
    )
    if not rows:
        return None
    caption = "The weight update, the algorithm, the batch, and what else the job sets."
    return TextTable(title, caption, ("setting", "value"), rows, STATES)


def _describe_row(job: Job, label: str, names: tuple[str, str]) -> tuple[TextCell, ...]:
    values = [job.settings[name].value for name in names if name in job.settings and job.settings[name].is_known]
    is_unlike = (
        label in SAME_MEANING
        and len(values) == 2
        and values[0] != values[1]
        and not any(value in ANY.get(label, ()) for value in values)
    )
    notes = {name: FIELDS[name][1] for name in names if name and _is_shown(job, name)}
    return (
        TextCell(label, note=_join_notes(notes)),
        *(_describe_setting(job, name, "differs" if is_unlike else "") for name in names),
    )


def _join_notes(notes: Mapping[str, str]) -> str:
    """Return the meanings of the settings of a row; once if both mean the same."""
    return " / ".join(dict.fromkeys(notes.values()))


def _is_shown(job: Job, name: str) -> bool:
    return name in job.settings and job.settings[name].status != "unknown"


def _describe_setting(job: Job, name: str, state: str = "") -> TextCell:
    """Return the cell of one setting; an empty one if it is unknown. state: one that takes precedence over its own."""
    if not _is_shown(job, name):
        return TextCell("")
    setting = job.settings[name]
    key = setting.leaf.key if setting.leaf is not None else ""
    if setting.status == "unresolved":
        return TextCell(key or name, "not resolved", f"{setting.place}: {setting.source}", key)
    own = "default" if setting.status == "default" else ""
    place = f"{key}, {setting.place}" if key and setting.place else setting.place
    return TextCell(shown(setting.value), state or own, place, key)
