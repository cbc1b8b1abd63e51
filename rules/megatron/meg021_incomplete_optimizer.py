"""The state of the optimizer is incomplete.

## What it checks
Each weight with one moment of the optimizer (`optimizer.state.exp_avg.…`) has every other kind that most weights have, each
is covered by its chunks without a gap, and has the weight's shape. Weights without any state are left alone: they may be
frozen.

## Why it matters
Training resumes with moments that were allocated and never filled, or stops while it loads. The weights may be sound.

## How to fix
Take an earlier iteration to resume from, or resume without the optimizer (`--no-load-optim`).

## When it can be wrong
Formats that lay the states out flat are left out. `--ignore MEG021` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

import re
from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import shape

STATE = re.compile(r"^(?:chained_\d+\.)?optimizer\.state\.(exp_avg|exp_avg_sq|fp32_param|momentum_buffer)\.(.+)$")
HINT = "take an earlier iteration to resume from, or resume without the optimizer"


@rule(
    "MEG021",
    "incomplete-optimizer",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and any(STATE.match(key) for key in run.tensors),
)
def check(run: Megatron) -> Iterator[Problem]:
    states: dict[str, dict[str, str]] = {}
    for key in run.tensors:
        if match := STATE.match(key):
            states.setdefault(match[2], {})[match[1]] = key
    kinds = Counter(kind for found in states.values() for kind in found)
    for weight, found in states.items():
        lacking = [kind for kind, number in kinds.items() if kind not in found and 2 * number > len(states)]
        if lacking:
            yield Problem(
                f"its optimizer state lacks {' and '.join(lacking)}", file=run.file(".metadata"), key=weight, hint=HINT
            )
        for kind, key in found.items():
            whole, own = run.tensors.get(weight), run.tensors[key]
            if key in run.covers and run.covers[key].missing:
                missing = run.covers[key].missing
                yield Problem(
                    f"{missing:,} elements of its {kind} are held by no chunk",
                    file=run.file(".metadata"),
                    key=weight,
                    hint=HINT,
                )
            elif whole is not None and len(own.shape) == len(whole.shape) and own.shape != whole.shape:
                yield Problem(
                    f"its {kind} is {shape(own.shape)}, and the weight is {shape(whole.shape)}",
                    file=run.file(".metadata"),
                    key=weight,
                    hint=HINT,
                )
