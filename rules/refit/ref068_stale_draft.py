"""The engine's draft model did not get its weights.

## What it checks
- After every sync, each parameter of the draft model (layers for multi-token prediction, or a model of its own) equals that of a
  cold load of the same weights.
- Before the first sync the trial fills these parameters with marks, unless it sends nothing for them. With `--set send-draft=on` it
  sends them, in a session of their own.
- Memory that the draft shares with the served model is the served model's: REF001 to REF004 judge it.

## Why it matters
- Rollouts get slower: the engine accepts few of the draft's tokens, so decoding takes as long as without a draft, or longer. The
  samples stay right, because exact rejection sampling keeps only tokens of the policy.
- Nothing else shows it. REF052 is an error if the trial measured that the engine accepts fewer tokens.

## How to fix
- vLLM (since 0.28) updates a draft in a session of its own: `start_draft_weight_update`, `update_weights`,
  `finish_weight_update`. `reload_weights` reaches the served model only.
- SGLang: `begin_weight_update` and the requests take a selector: `target` for the policy, `draft` for the draft, `all` where one
  stream has both. With a draft of its own, `all` writes the policy's weights over a draft whose tensors have the same names.

## When it can be wrong
- An engine that accepts tokens by a threshold (SGLang's `--speculative-accept-threshold-single` below 1) does sample from a
  mixture: there the finding is as serious as one about the policy.

## Seen in
radixark/miles#1926 (acceptance 2.71, then 1.00, no error), sgl-project/sglang#27718, NovaSky-AI/SkyRL#2194
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.observations import Key, Sync, is_draft
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_ranks
from ckptcheck.text.formatting import count, join_truncated

SESSIONS = {
    "vllm": "open a session of its own for it: start_draft_weight_update, update_weights, finish_weight_update",
    "sglang": "send it with the selector draft, and the policy's weights with the selector target",
}
"""Engine → how an update reaches its draft model. vLLM 0.32 entrypoints/rl/offline.py; SGLang 0.5.23 io_struct.py."""


@rule(
    "REF068",
    "stale-draft",
    severity="warning",
    on="refit",
    when=lambda trace: any(is_draft(name) for sync in trace.syncs for _, name in sync.manifest),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    hint = SESSIONS.get(trace.engine.name if trace.engine else "", "send it in an update of its own")
    reported: set[Key] = set()
    for sync in trace.syncs:
        own = {key for key in sync.reference if is_draft(key[1])} - _find_shared(sync)
        total = len({key[1] for key in own if sync.reference[key].kind == "parameter"})
        answer = sync.draft_answer
        if answer is not None and not answer.ok:
            yield Problem(
                f"sync {sync.number}: the engine did not take the weights of its draft model: {answer.message}"
            )
            return
        for state, keys in _group_by_state(trace, sync, own).items():
            if not (keys := keys - reported):
                continue
            reported |= keys
            names = sorted({name for _, name in keys})
            yield Problem(
                f"after sync {sync.number}, {len(names):,} of {count(total, 'tensor')} of the draft model"
                f" {state}: {join_truncated(names)}{describe_ranks(trace, keys)};"
                + (" the engine reported success;" if answer is not None else "")
                + " samples stay right, but fewer of its tokens are accepted, and decoding takes longer",
                key=names[0],
                hint=hint,
                names=tuple(names),
            )


def _find_shared(sync: Sync) -> set[Key]:
    """Return the draft model's tensors that lie in memory of the served model."""
    served = {(rank, entry.storage) for (rank, name), entry in sync.manifest.items() if not is_draft(name)}
    return {
        (rank, name)
        for (rank, name), entry in sync.manifest.items()
        if is_draft(name) and entry.storage and (rank, entry.storage) in served
    }


def _group_by_state(trace: RefitTrace, sync: Sync, own: set[Key]) -> dict[str, set[Key]]:
    """Return how parameters of the draft model are wrong → those that are."""
    unwritten = {key for key, part in sync.unwritten_parts.items() if key in own and part.sentinel_count == part.total}
    partial = {key for key in sync.unwritten_parts if key in own} - unwritten
    wrong = {
        key
        for key, (entry, _) in sync.differing_tensors.items()
        if key in own and entry.kind == "parameter" and key not in sync.unwritten_parts
    }
    lost = {key for key in own & sync.missing_tensors.keys() if sync.reference[key].kind == "parameter"}
    before = next((each for each in reversed(trace.syncs[: sync.number - 1]) if each.step < sync.step), None)
    stale = {key for key in wrong if before is not None and _is_of(before, sync, key)}
    return {
        "got nothing": unwritten,
        "were written in part only": partial,
        "still hold the values of an earlier step": stale,
        "hold other values than in a cold load of the same weights": wrong - stale,
        "are gone": lost,
    }


def _is_of(before: Sync, sync: Sync, key: Key) -> bool:
    return key in before.reference and before.reference[key].digest == sync.manifest[key].digest
