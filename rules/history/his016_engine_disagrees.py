"""After a sync, the engine's logprobs are further from the trainer's than they were before.

## What it checks
- The watch has both sides score a few fixed sequences after some syncs (`Watch(probe=…)`).
- With a floor that was calibrated for the model, the mean |Δ| is at most 5 times that.
- Otherwise it is at most 5 times the median of the probes before that were sound. From the third probe on the rule can
  tell; a gap below 2e-6 nats never counts.
- In any case mean |Δ| stays below 0.05 nats.
- A gap that lasts from one probe to the next is one finding, with the number of probes.
- Where another rule says what is wrong with the sync of its first probe, this finding is an info.

## Why it matters
- Engine and trainer have the same weights right after a sync. If they compute different logprobs, the engine samples from
  something else than the policy that is trained, whatever its weights look like.

## How to fix
- The digests of the same sync name the tensor where they can see it (HIS001, HIS008).
- `ckptcheck parity why FILE SOURCE` separates the causes, from the logprobs that the probe kept.

## When it can be wrong
- A mixture of experts in bfloat16 may route a token of a short probe to other experts. Use more sequences.

## Seen in
NovaSky-AI/SkyRL#1680 (rollouts of a mixture of experts were silently corrupted from the first sync on)
"""

import shlex
from collections.abc import Iterator
from statistics import median

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.runs.history.sync_faults import find_fault

BEYOND_FLOOR = 5.0
"""How many times its floor the gap of a model may be, as in `ckptcheck parity judge`."""
EXACT = 2e-6
"""Nats: two implementations in float32 need not agree better than this."""
LARGEST = 0.05
"""Nats: NeMo-RL's limit for equal precision is a mult_prob_error of 1.05."""


def _find_limit(before: list[float], floor: float | None) -> tuple[float, str]:
    """Return the largest mean |Δ| that is sound, and what it is based on."""
    if floor is not None:
        return min(LARGEST, max(EXACT, BEYOND_FLOOR * floor)), f"the model's floor is {floor:.3g}"
    if len(before) < 2:
        return LARGEST, f"the limit is {LARGEST}"
    limit = max(EXACT, BEYOND_FLOOR * median(before))
    return min(LARGEST, limit), f"it was {median(before):.3g} at the probes before"


@rule(
    "HIS016",
    "engine-disagrees",
    severity="error",
    on="history",
    when=lambda history: any(sync.probe is not None for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    sound: dict[str, list[float]] = {}
    lasting: dict[str, list[int]] = {}
    gaps: list[tuple[list[int], str, str]] = []
    kept: dict[str, str] = {}
    """Process → the file of its last sound probe."""
    for index, sync in enumerate(history.syncs):
        if (probe := sync.probe) is None or probe.mean is None:
            continue  # HIS022 says it of what is no number
        before = sound.setdefault(sync.run, [])
        limit, reason = _find_limit(before, probe.floor)
        if probe.mean <= limit:
            before.append(probe.mean)
            kept[sync.run] = probe.file
            lasting.pop(sync.run, None)
        elif sync.run in lasting:
            lasting[sync.run].append(index)
        else:
            lasting[sync.run] = [index]
            gaps.append((lasting[sync.run], reason, kept.get(sync.run, "")))
    for indices, reason, sound_file in gaps:
        yield _describe_gap(history, indices, reason, sound_file)


def _describe_gap(history: History, indices: list[int], reason: str, sound_file: str) -> Problem:
    """Describe a gap by its first probe, and say how long it lasts. sound_file: of the last probe before it, "" for none."""
    probes = [probe for index in indices if (probe := history.syncs[index].probe) is not None]
    first = probes[0]
    message = (
        f"{history.label(indices[0])}: on {first.tokens:,} fixed tokens the engine is {first.mean or 0:.3g} nats a token from the"
        f" trainer, at most {first.most or 0:.3g}; {reason}"
    )
    if len(probes) > 1:
        largest = max(probe.mean or 0 for probe in probes)
        message += f"; it lasts for {len(probes):,} probes, to {history.label(indices[-1])}, and reaches {largest:.3g}"
    text, codes = find_fault(history, indices[0])
    return Problem(
        f"{message}{'; ' if text else ''}{text}",
        follows=codes,
        hint=f"ckptcheck parity why {shlex.quote(first.file)} SOURCE"
        + (f" --floor {shlex.quote(sound_file)}" if sound_file else "")
        if first.file
        else "ckptcheck parity probe separates the causes",
    )
