"""Trainer and engine route tokens to different experts.

## What it checks
Where both sides recorded routing: the share of tokens whose set of experts differs, layer by layer.

- In a job whose trainer repeats the engine's choice (`--replay`, or `--job` says so), one row that differs is an error. The rows of
  last tokens do not count: the engine computes nothing from them.
- In others the rule reports half of the tokens or more in one layer, or a quarter over all layers.

## Why it matters
Another expert is another function. In bfloat16 rounding flips a tenth of all decisions, and most tokens flip in some layer. A
layer that disagrees for half of its tokens has another router, another order of experts, or another input. With a replay no row
differs for a reason of arithmetic: rows that do were lost, or stand at other tokens or layers. Where they differ as those of two
routers do, nothing is repeated.

## How to fix
Compare the router of that layer (`ckptcheck diff`), its bias and its dtype on both sides. Routing replay only hides the
difference. With a replay: follow the rows of the first token that differs from the engine's answer to the trainer's router.

## When it can be wrong
Routers that spread tokens at random or by load choose differently every time. Of a job that replays, the trainer's record was
taken in another forward pass, before the replay.

## Seen in
radixark/miles#2722, NVIDIA TensorRT-LLM#19501 (10 % of decisions), prime-rl#2952; with a replay sgl-project/sglang#36404 (rows of
padding), NVIDIA-NeMo/RL#3903 (rows of another layer), radixark/miles#2570 (bound to routers that are not run)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

LAYER, OVERALL = 0.5, 0.25


@rule(
    "PAR031",
    "other-experts",
    severity="warning",
    on="rollouts",
    when=lambda evidence: {"engine_routing", "trainer_routing"} & evidence.rollouts.columns.keys(),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    if evidence.routing_disagreement is None:
        raise Skip("the file lacks the routing of both sides for the same layers and top k")
    if evidence.replays:
        yield from _find_unlike_rows(evidence)
        return
    shares, tokens = evidence.routing_disagreement
    worst = int(shares.argmax())
    if shares[worst] >= LAYER or shares.mean() >= OVERALL:
        text = f"{shares[worst]:.0%} of {count(tokens, 'token')} go to other experts in layer {worst}, "
        text += f"{shares.mean():.1%} over all {count(len(shares), 'layer')}"
        yield Problem(
            text, key=f"layer {worst}", hint="compare the router of that layer, its bias and its dtype on both sides"
        )


def _find_unlike_rows(evidence: RolloutEvidence) -> Iterator[Problem]:
    """Yield a problem for rows that a replay would have made equal. One that shifts all rows is PAR069's."""
    rows, shift = evidence.unlike_rows, evidence.routing_shift
    if rows is None or rows.first is None or (shift is not None and shift.is_certain):
        return
    sequence, token, layer = rows.first
    layers = int((rows.layers > 0).sum())
    text = (
        f"the trainer sends {rows.number:,} of {count(rows.tokens, 'token')} to other experts than the engine did, in"
    )
    text += (
        f" {count(layers, 'layer')} and {count(rows.sequences, 'sequence')}, in a job that replays the engine's choice"
    )
    if rows.is_everywhere:
        text += ": as many as without a replay, as if there were none"
        hint = "check whether the trainer gets the engine's experts, and uses them in the pass that computed these logprobs"
    else:
        text += f"; the first is token {token} of sequence {sequence}, in layer {layer}"
        hint = "follow the experts of that token from the engine's answer to the trainer's router"
    yield evidence.problem(
        text,
        "trainer.router_replay",
        hint=hint,
        key=f"sequence {sequence}, token {token}, layer {layer}",
        severity="error",
    )
