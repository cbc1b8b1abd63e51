"""What a trial measured, as tables of the report."""

from __future__ import annotations

from collections.abc import Iterator

from ckptcheck.refit.judging import gaps
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.report import Section


def measured(trace: RefitTrace) -> Iterator[Section]:
    """Yield the tables: logprobs and their floor, steps, greedy text. Those of which nothing was seen are left out."""
    if trace.scorings and trace.engine and trace.trainer:
        engine, trainer = trace.floor.engine, trace.floor.trainer
        yield Section(
            "how far each side is from itself over the same weights (nats): the floor of every comparison",
            ("side", "again", "alone, not together", "decoding, not prefill"),
            (
                (trace.engine.name, engine.repeat, engine.batch, engine.decode),
                (trace.trainer.name, trainer.repeat, trainer.batch, None),
            ),
        )
        rows = []
        for scoring in trace.scorings:
            seen = gaps(scoring)
            step = trace.syncs[scoring.after - 1].step if scoring.after else 0
            when = f"sync {scoring.after}" if scoring.after else "cold load"
            rows.append((when, step, *((seen.prefill, seen.decode) if scoring.after else (None, None)), seen.trainer))
        yield Section(
            f"logprobs: largest difference (nats); trainer and engine may be {trace.floor.sides:.2g} apart",
            ("after", "step", "from a cold load: prefill", "decoding", "from the trainer"),
            tuple(rows),
        )
    if trace.steps:
        yield Section(
            "optimizer steps",
            ("step", "loss", "gradient norm", "parameters left as they were"),
            tuple(
                (number, step.loss, step.grad_norm, len(step.unchanged)) for number, step in enumerate(trace.steps, 1)
            ),
        )
    if lines := tuple(_spoken(trace)):
        yield Section("greedy text of the engine; the trainer's where it is another", lines=lines)


def _spoken(trace: RefitTrace) -> Iterator[str]:
    for scoring in trace.scorings:
        if (said := scoring.speech) is None:
            continue
        when = f"sync {scoring.after}" if scoring.after else "cold load"
        for side, text, ids in (
            ("", said.engine_text, said.engine),
            ("  trainer", said.trainer_text, said.trainer if said.parted is not None else ()),
        ):
            if ids:
                yield f"{when}{side}: {text!r}" if text else f"{when}{side}: {' '.join(map(str, ids))}"
