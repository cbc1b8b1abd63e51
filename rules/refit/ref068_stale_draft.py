"""The engine's draft model did not get its weights, or proposes worse than it should.

## What it checks
- After every sync, each parameter of the draft model (layers for multi-token prediction, or a model of its own) equals that of a
  cold load of the same weights. Before the first sync the trial fills these parameters with marks, unless it sends nothing for
  them. With `--set send-draft=on` it sends them, in a session of their own.
- Memory that the draft shares with the served model is the served model's: REF001 to REF004 judge it.
- The engine decodes greedily with its draft model (`--switch draft=mtp` or `draft=DIR`), and the trial counts the tokens of a
  decode step: the acceptance length, 1 where no proposed token is accepted. The same engine, started cold from the same weights,
  gains at least a quarter more: an error, which the sync made.
- The trainer sends no tensor of the draft model, and the engine decodes fewer tokens in a step than before the trainer's steps: at
  least a fifth of what it gained is lost, in a cold load of the same weights too. The policy has moved away from the draft model.

## Why it matters
- Speculative decoding returns right tokens whatever the draft model proposes. So nothing else shows that a sync broke the draft
  model: rollouts only become slow, until decoding takes as long as without a draft, or longer.
- The policy's weights and the draft model's may each be right, and still the tensors that they share (an embedding, a head, tensors
  repacked after each update) be wrong.

## How to fix
- Check that the update reaches the tensors that the draft model shares with the policy.
- vLLM (since 0.28) updates a draft in a session of its own: `start_draft_weight_update`, `update_weights`,
  `finish_weight_update`. `reload_weights` reaches the served model only.
- SGLang: `begin_weight_update` and the requests take a selector: `target` for the policy, `draft` for the draft, `all` where one
  stream has both. With a draft of its own, `all` writes the policy's weights over a draft whose tensors have the same names.
- Train the layers for multi-token prediction with the policy and send them too, or distil the draft model again now and then.
- Watch the engine's acceptance length in the job: vLLM's `vllm:spec_decode_num_accepted_tokens` and SGLang's `spec_accept_length`.

## When it can be wrong
- An engine that accepts tokens by a threshold (SGLang's `--speculative-accept-threshold-single` below 1) does sample from a
  mixture: there the finding is as serious as one about the policy.
- On a GPU two starts may choose other kernels, and greedy texts diverge at a tie. The rule allows a fifth of the gain for that.
- A frozen draft model may be intended, and the trial's step is larger than a job's: `--set perturb` with a small scale shows the
  effect of a job's step.

## Seen in
radixark/miles#1926 (acceptance 2.71, then 1.00, no error), sgl-project/sglang#27718, NovaSky-AI/SkyRL#2194,
sgl-project/sglang#34495, vllm-project/vllm-ascend#13209; sgl-project/sglang#28257, SkyRL#2142 ("silently drafted with stale
weights")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.draft import FEWEST_GAINED, KEPT_SHARE
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
    when=lambda trace: (
        any(each.after_sync for each in trace.acceptances)
        or any(is_draft(name) for sync in trace.syncs for _, name in sync.manifest)
    ),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    yield from _find_stale(trace)
    yield from _find_broken(trace)
    is_apart = trace.engine is not None and (bool(trace.untrained) or trace.engine.facts.get("draft") == "model")
    if is_apart and not trace.sent_draft:
        yield from _find_outdated(trace)


def _find_stale(trace: RefitTrace) -> Iterator[Problem]:
    hint = SESSIONS.get(trace.engine.name if trace.engine else "", "send it in an update of its own")
    reported: set[Key] = set()
    for sync in trace.syncs:
        own = {key for key in sync.reference if is_draft(key[1])} - _find_shared(sync)
        total = len({key[1] for key in own if sync.reference[key].kind == "parameter"})
        answer = sync.draft_answer
        if answer is not None and not answer.ok:
            yield Problem(
                f"sync {sync.number}: the engine did not take the weights of its draft model: {answer.message}",
                hint="the message is the engine's own: its log has the traceback; until it takes them, it drafts with older ones",
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


def _find_broken(trace: RefitTrace) -> Iterator[Problem]:
    for each in trace.acceptances:
        gained, possible = each.engine - 1, each.cold - 1
        if each.after_sync and possible >= FEWEST_GAINED and gained < KEPT_SHARE * possible:
            yield Problem(
                f"after sync {each.after_sync} the engine decodes {each.engine:.2f} tokens a step with its draft model, and a cold"
                f" load of the same weights {each.cold:.2f}: the sync left wrong weights in the draft model",
                hint="update the draft model in its own session, and what it shares with the policy in the policy's session",
                severity="error",
            )
            return


def _find_outdated(trace: RefitTrace) -> Iterator[Problem]:
    first = trace.acceptances[0].cold
    for each in trace.acceptances:
        step = trace.syncs[each.after_sync - 1].step if each.after_sync else 0
        if step and first - 1 >= FEWEST_GAINED and each.cold - 1 < KEPT_SHARE * (first - 1):
            which = f" ({join_truncated(trace.untrained)})" if trace.untrained else ""
            yield Problem(
                f"after {step} step{'s' if step > 1 else ''} the engine decodes {each.cold:.2f} tokens a step with its draft model,"
                f" and {first:.2f} before: the trainer sends no tensor of it{which}, so it proposes what the policy said before",
                hint="train and send the draft model too, or distil it again",
                severity="warning",
            )
            return
