"""Advantages do not follow the rewards of their group: one of the two belongs to other sequences.

## What it checks
Responses to one prompt are a group. Where rewards and advantages are recorded and an advantage holds for a whole sequence, a
response with more reward has no smaller advantage than another of its group, and equal rewards have about equal advantages. Every
estimator that subtracts a mean and divides by a deviation keeps this order. Rewards count as different where they differ by at
least half of what they differ at most in their group, and advantages of equal rewards likewise.

It is an error where a quarter of the groups break the order, or one does and at least half of the groups fit exactly, as a line.
The message says what explains it, if anything does: rewards that are some places off, two that were exchanged. It is an error,
too, where groups of neighbours all fit exactly, and groups of one prompt do not.

## Why it matters
The step makes wrong responses likelier and right ones less likely, while mean reward, loss and KL look as ever.

## How to fix
Sort, filter and balance a batch with rewards, advantages and ids together. Group advantages by the prompt's id, not by
`view(-1, num_generations)` of a batch in another order.

## When it can be wrong
Advantages with a term of their own beside the reward, such as a penalty of length or a KL that outweighs the reward. Different
prompts with the same tokens, such as those that differ only in their picture, count as one group.

## Seen in
StarsfieldAI/R1-V#67 (P1 P2 P1 P2 grouped by neighbours), dllm-reasoning/d1#19
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.learning_signal import LearningSignal
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

ROUNDING = 1e-3
"""Of the largest advantage: differences below are rounding."""
CONSTANT = 0.9
"""Least share of sequences whose advantage is the same for every token."""
MOST_PLACES, MOST_PARTNERS = 16, 256
"""By how many places rewards are moved, and with how many sequences they are exchanged, to find what explains the advantages."""


@rule(
    "PAR082",
    "exchanged-rewards",
    severity="error",
    on="rollouts",
    when=lambda evidence: evidence.is_well_formed and {"rewards", "advantages"} <= evidence.rollouts.columns.keys(),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    signal = evidence.learning_signal
    if signal is None or not signal.groups:
        raise Skip("no two trained sequences have one prompt")
    if signal.rewards is None:
        raise Skip("no reward is known")
    assert signal.lowest is not None
    assert signal.highest is not None
    rewards, advantages = signal.rewards, (signal.lowest + signal.highest) / 2
    if not (np.isfinite(rewards).all() and np.isfinite(advantages).all()):
        raise Skip("a reward or an advantage is not finite")
    scale = float(np.abs(advantages).max())
    if (signal.highest - signal.lowest <= ROUNDING * scale).mean() < CONSTANT:
        raise Skip("advantages change from token to token, as those of a critic do")
    judged = [_judge(rewards[group], advantages[group], scale) for group in signal.groups]
    used, broken = len(judged) - judged.count(""), judged.count("broken")
    if (
        _fits(neighbours := _list_neighbours(signal.groups, len(rewards)), rewards, advantages, scale)
        and "near" in judged
    ):
        explanation = f"they follow the rewards of {len(neighbours[0])} neighbours each, whatever their prompts are"
    elif broken and (4 * broken >= used or 2 * judged.count("exact") >= used):
        explanation = _explain(signal, rewards, advantages, scale)
    else:
        return
    worst = next(group for group, verdict in zip(signal.groups, judged, strict=True) if verdict in ("broken", "near"))
    one, other = (int(worst[place]) for place in _find_worst(rewards[worst], advantages[worst]))
    text = f"in {used - judged.count('exact'):,} of {count(used, 'group')} of one prompt advantages do not follow rewards: "
    text += (
        f"sequence {signal.sequences[one]} has reward {rewards[one]:g} and advantage {advantages[one]:.3g}, sequence"
    )
    text += f" {signal.sequences[other]} has reward {rewards[other]:g} and advantage {advantages[other]:.3g}"
    yield Problem(
        f"{text}; {explanation}" if explanation else text,
        key=f"sequence {signal.sequences[one]}",
        hint="keep rewards, advantages and ids together where a batch is sorted, and group by the prompt's id",
    )


def _judge(rewards: Any, advantages: Any, scale: float) -> str:
    """Return ``exact`` for advantages that are a rising line over the rewards, ``broken``, ``near``, or "" for nothing to judge."""
    import numpy as np

    span = float(rewards.max() - rewards.min())
    spread = float(advantages.max() - advantages.min())
    if not span:
        return "" if spread <= ROUNDING * scale else "near"
    if spread <= ROUNDING * scale:
        return "near"
    more, less = rewards[:, None] - rewards[None, :], advantages[None, :] - advantages[:, None]
    if ((more >= span / 2) & (less > ROUNDING * scale)).any() or ((more == 0) & (less >= spread / 2)).any():
        return "broken"
    slope = spread / span
    line = advantages.mean() + slope * (rewards - rewards.mean())
    return "exact" if np.abs(advantages - line).max() <= 10 * ROUNDING * scale else "near"


def _find_worst(rewards: Any, advantages: Any) -> tuple[int, int]:
    """Return the places of two responses whose advantages are most in the wrong order, of which the first has no more reward."""
    import numpy as np

    no_less = rewards[:, None] - rewards[None, :] >= float(rewards.max() - rewards.min()) / 2
    no_less |= rewards[:, None] == rewards[None, :]
    wrong = np.where(no_less, advantages[None, :] - advantages[:, None], -np.inf)
    high, low = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return int(low), int(high)


def _fits(groups: Any, rewards: Any, advantages: Any, scale: float) -> bool:
    """Whether the advantages of every group are a rising line over its rewards, and some group has any."""
    judged = {_judge(rewards[group], advantages[group], scale) for group in groups}
    return "exact" in judged and judged <= {"exact", ""}


def _list_neighbours(groups: Any, number: int) -> Any:
    """Return the places of groups of neighbours as large as those of one prompt; () where these differ in size or have two."""
    import numpy as np

    sizes = {len(group) for group in groups}
    size = sizes.pop()
    # of two rewards, any two advantages in their order are a line
    return np.arange(number).reshape(-1, size) if not sizes and size > 2 and not number % size else ()


def _explain(signal: LearningSignal, rewards: Any, advantages: Any, scale: float) -> str:
    """Return which other rewards the advantages follow; "" for none that was tried."""
    import numpy as np

    for distance in sorted(range(-MOST_PLACES, MOST_PLACES + 1), key=abs)[1:]:
        if _fits(signal.groups, np.roll(rewards, distance), advantages, scale):
            return f"they follow the rewards {count(abs(distance), 'place')} {'earlier' if distance > 0 else 'later'}"
    broken = [group for group in signal.groups if _judge(rewards[group], advantages[group], scale) not in ("exact", "")]
    if len(broken) <= 2:
        for one, other in product(broken[0], np.concatenate(signal.groups)[:MOST_PARTNERS]):
            swapped = rewards.copy()
            swapped[[one, other]] = rewards[[other, one]]
            if rewards[one] != rewards[other] and _fits(signal.groups, swapped, advantages, scale):
                return f"with the rewards of sequences {signal.sequences[one]} and {signal.sequences[other]} exchanged they do"
    return ""
