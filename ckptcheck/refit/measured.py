"""What a trial measured, as tables of the report."""

from __future__ import annotations

from collections.abc import Iterator

from ckptcheck.refit.floor import unforced
from ckptcheck.refit.judging import gaps
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.report import Section


def measured(trace: RefitTrace) -> Iterator[Section]:
    """Yield the tables: logprobs and their floor, steps, greedy text. Those of which nothing was seen are left out."""
    if trace.ignored:
        lines = tuple(f"{name}: {why}" for name, why in trace.ignored.items())
        yield Section("switches that the engine did not take: nothing here speaks of them", lines=lines)
    if trace.scorings and trace.engine and trace.trainer:
        sides = ((trace.engine.name, trace.floor.engine), (trace.trainer.name, trace.floor.trainer))
        cannot = unforced(trace.engine)
        floor = [
            (name, what, gap.most, gap.mean)
            for name, noise in sides
            for what, gap in (
                ("asked again", noise.repeat),
                ("each sequence alone", noise.batch),
                ("by decoding", noise.decode if noise is trace.floor.engine else None),
                ("weights moved by their last place", noise.rounding),
            )
            if gap is not None
        ]
        yield Section(
            "the floor: how far each side is from itself over the same weights (nats)",
            ("side", "", "most", "mean"),
            tuple(floor),
        )
        rows = []
        for scoring in trace.scorings:
            seen = gaps(scoring)
            step = trace.syncs[scoring.after - 1].step if scoring.after else 0
            cold = (seen.prefill.most, seen.decode.most) if scoring.after else (None, None)
            when = f"sync {scoring.after}" if scoring.after else "cold load"
            forced = (seen.forced.most, seen.forced.mean) if seen.forced else (None, None)
            rows.append((when, step, *cold, seen.trainer.most, seen.trainer.mean, *forced))
        allowed = trace.floor.sides
        limits = (allowed.most, allowed.mean)
        rows.append(("allowed", None, trace.floor.loads, trace.floor.loads, *limits, *limits))
        yield Section(
            "logprobs: how far the engine is from a cold load, and from the trainer (nats)",
            ("after", "step", "cold load: prefill", "decoding", "trainer: most", "mean", "decoding: most", "mean"),
            tuple(rows),
            (f"the trainer's tokens were not decoded: {cannot}",) if cannot else (),
        )
    if passages := [(sync.number, sync.passage) for sync in trace.syncs if sync.passage is not None]:
        columns = ("sync", "pause", "finish", "tokens", "of", "new weights from", "said so from")
        passed = (
            (number, one.pause, one.finish, one.tokens, one.wanted, one.first, one.said) for number, one in passages
        )
        yield Section("the request that ran when the weights came (tokens are counted from 1)", columns, tuple(passed))
    if trace.steps:
        yield Section(
            "optimizer steps",
            ("step", "loss", "gradient norm", "parameters left as they were"),
            tuple(
                (number, step.loss, step.grad_norm, len(step.unchanged)) for number, step in enumerate(trace.steps, 1)
            ),
        )
    if spoken := tuple(_spoken(trace)):
        yield Section("greedy text of the engine; the trainer's where it is another", lines=spoken)


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
