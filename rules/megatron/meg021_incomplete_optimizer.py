"""The state of the optimizer is incomplete.

## What it checks
Each weight with one moment of the optimizer (`optimizer.state.exp_avg.…`) has every other kind that most weights have, each
is covered by its chunks without a gap, and has the weight's shape. Weights without any state are left alone: they may be
frozen. Adam's second moment is not there without the first, and in a plain torch.distributed.checkpoint folder a state has
both where most others have.

The distributed optimizer's own layout (`dp_reshardable`) stores buckets in place of weights: there every bucket of a buffer
is there, from the first to the last that is, with every kind that most buckets have, all as long, and without a gap; and
every data-parallel group that has an entry has buckets.

## Why it matters
Training resumes with moments that were allocated and never filled, or stops while it loads. The weights may be sound.

## How to fix
Take an earlier iteration to resume from, or resume without the optimizer (`--no-load-optim`).

## When it can be wrong
Formats that lay the states out flat otherwise are left out. That the last bucket of a buffer is missing, or a whole
data-parallel group with its entries, shows only in `ckptcheck verify`. `--ignore MEG021` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

import re
from collections import Counter
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count, few, ranges, shape

STATE = re.compile(r"^(?:chained_\d+\.)?optimizer\.state\.(exp_avg|exp_avg_sq|fp32_param|param|momentum_buffer)\.(.+)$")
PLAIN = re.compile(r"^(.*\boptim(?:i[sz]ers?)?\.state\.(.+))\.(exp_avg|exp_avg_sq)$")
"""As torch's get_optimizer_state_dict names them."""
BUCKET = re.compile(
    r"^((?:chained_\d+\.)?optimizer\.distributed\.dp_group_idx_\d+)\.(gbuf_idx_\d+\.dtype_.+)\.bucket_idx_(\d+)\.(\w+)$"
)
GROUP = re.compile(r"^((?:chained_\d+\.)?optimizer\.distributed\.dp_group_idx_\d+)\.per_bucket_numel/")
HINT = "take an earlier iteration to resume from, or resume without the optimizer"


@rule(
    "MEG021",
    "incomplete-optimizer",
    severity="error",
    on="megatron",
    when=lambda run: (
        run.form == "torch_dist"
        and any(STATE.match(key) or BUCKET.match(key) or PLAIN.match(key) for key in _keys(run))
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    yield from _weights(run)
    yield from _moments(run)
    yield from _buckets(run)


def _keys(run: Megatron) -> list[str]:
    """Return the keys that can be of an optimizer: a model has ten times as many others."""
    return [key for key in run.tensors if "optim" in key]


def _weights(run: Megatron) -> Iterator[Problem]:
    states: dict[str, dict[str, str]] = {}
    for key in _keys(run):
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


def _moments(run: Megatron) -> Iterator[Problem]:
    """Adam has two moments; that of second order is no use without the other."""
    kinds = {match[1] for key in _keys(run) if (match := STATE.match(key))}
    if "exp_avg_sq" in kinds and "exp_avg" not in kinds:
        yield Problem(
            "every optimizer state lacks exp_avg", file=run.file(".metadata"), key="optimizer.state", hint=HINT
        )
    states: dict[str, set[str]] = {}
    for key in _keys(run):
        if (match := PLAIN.match(key)) and not STATE.match(key):
            states.setdefault(match[1], set()).add(match[3])
    whole = sum(len(found) == 2 for found in states.values())
    torn = [name for name, found in states.items() if len(found) == 1]
    if torn and whole > len(torn):
        lost = next(iter({"exp_avg", "exp_avg_sq"} - states[torn[0]]))
        yield Problem(
            f"{count(len(torn), 'optimizer state lacks', 'optimizer states lack')} a moment that {whole} others have: "
            f"{lost} of {few(torn)}",
            file=run.file(".metadata"),
            key=torn[0],
            hint=HINT,
        )


def _buckets(run: Megatron) -> Iterator[Problem]:
    buffers: dict[tuple[str, str], dict[int, dict[str, str]]] = {}
    for key in _keys(run):
        if match := BUCKET.match(key):
            buffers.setdefault((match[1], match[2]), {}).setdefault(int(match[3]), {})[match[4]] = key
    if not buffers:
        return
    file = run.file(".metadata")
    kinds = Counter(kind for buckets in buffers.values() for found in buckets.values() for kind in found)
    number = sum(map(len, buffers.values()))
    for (group, buffer), buckets in buffers.items():
        if missing := sorted(set(range(min(max(buckets), 1 << 20))) - buckets.keys()):
            text = f"{count(len(missing), 'bucket')} of {max(buckets) + 1} {'is' if len(missing) == 1 else 'are'} missing: "
            yield Problem(text + ranges(missing), file=file, key=f"{group}.{buffer}", hint=HINT)
        for bucket, found in buckets.items():
            name = f"{group}.{buffer}.bucket_idx_{bucket}"
            lacking = [kind for kind, times in kinds.items() if kind not in found and 2 * times > number]
            if lacking:
                yield Problem(f"it lacks {' and '.join(lacking)}", file=file, key=name, hint=HINT)
            sizes = {kind: run.tensors[key].shape for kind, key in found.items()}
            if len(set(sizes.values())) > 1:
                listed = ", ".join(f"{kind} is {shape(size)}" for kind, size in sizes.items())
                yield Problem(f"its parts differ in length: {listed}", file=file, key=name, hint=HINT)
            for kind, key in found.items():
                if key in run.covers and (gap := run.covers[key].missing):
                    yield Problem(
                        f"{gap:,} elements of its {kind} are held by no chunk", file=file, key=name, hint=HINT
                    )
    groups = {match[1] for key in (run.contents.objects if run.contents else ()) if (match := GROUP.match(key))}
    for group in sorted(groups - {group for group, _ in buffers}):
        yield Problem("it has an entry, and no bucket", file=file, key=group, hint=HINT)
