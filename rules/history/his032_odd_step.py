"""A number that the job logs of a step is none that a sound step has.

## What it checks
In the log of a job of slime, miles, verl, TRL, NeMo-RL or PipelineRL (`ckptcheck refit history train.log`), of
`ckptcheck gate --first-step`, and in what a running job logs where a watch reads it (`WatchCallback`, `watch_log`):
- **KL at step 0** (slime, miles): `train/ppo_kl` compares the trainer with itself, `train/kl_loss` and `rollout/ref_log_probs` with
  the reference of the same weights. All are 0: slime's CI allows 1e-8. A reference that is off by more than 0.01, which kernels do
  not make, is an error.
- **Logprobs at the first step** (slime, miles): `rollout/log_probs` below -3 is an info, below 0.47 of a guess a warning, and below
  three quarters of it an error, as of implausible-logprobs. The vocabulary is not known: 32,000 tokens count.
- **The gradient** (all but NeMo-RL). Its norm before clipping is 1,000 or more from the first step on, or 0 at every one of
  at least five steps.

## Why it matters
- A KL at step 0 is a reference, or a trainer, that computes with other weights than the job was given, or kernels that do not
  repeat themselves: every ratio of the run has that noise.
- Clipping scales a wrong gradient down to the usual size. The loss looks sound, and the step goes into a random direction.
- A gradient of 0 trains nothing.

## How to fix
- KL: force deterministic attention (`--attention-backend flash`); with experts set `--moe-permute-fusion`. Then compare the
  checkpoints of both with `ckptcheck diff`.
- A large gradient: the same flag for experts; a loss that is not divided by its tokens; overlapped communication of experts.
- 0: groups of equal rewards have no advantage; parameters that the optimizer does not hold, as of an adapter.

## When it can be wrong
- `--use-rollout-logprobs` compares with the engine, and routing replay routes the actor alone: then the KL is not 0.
- A reference that is another model on purpose. A loss that is a sum.

## Seen in
slime docs/en/developer_guide/debug.md (first training step) and its CI; THUDM/slime#774 (ppo_kl while on-policy),
NVIDIA-NeMo/ProRL-Agent-Server#40 (slime, a norm of 3e9 at a KL of 0), NVIDIA-NeMo/Megatron-Bridge#2403 (2e5 with overlapped
experts), verl-project/verl#4514 and modelscope/ms-swift#5890 (always 0)
"""

from collections.abc import Iterator
from math import isfinite

from ckptcheck import Problem, rule
from ckptcheck.rollouts.coherence import guess_logprob
from ckptcheck.runs.history.history import History
from ckptcheck.runs.history.record import LoggedStep
from ckptcheck.text.formatting import count

SAME, ROUNDING = 1e-8, 1e-2
"""Nats: what slime's CI allows, and what bfloat16's rounding stays below, as in PAR026."""
LIMIT, UNLIKELY, HOPELESS = -3.0, 0.47, 0.75
"""The mean logprob, and shares of a guess's, of PAR027."""
HUGE = 1e3
"""Norms of sound jobs are below 10 as a rule; 900 were reported of a vision model's first steps (TIGER-AI-Lab/VLM2Vec#137)."""
ENOUGH = 5
"""Steps after which a gradient of 0 is no batch of equal rewards."""
COMPARED = (
    (
        "the trainer is compared with itself",
        True,
        "with --use-rollout-logprobs it is compared with the engine, and this is no fault",
    ),
    (
        "trainer and reference hold the same weights",
        False,
        "else ckptcheck diff of the two checkpoints; routing replay, which routes the trainer alone, is no fault",
    ),
)
"""What a KL compares, whether that is the trainer with itself, and what else may be the reason."""


@rule("HIS032", "odd-step", severity="warning", on="history", when=lambda history: bool(history.logged))
def check(history: History) -> Iterator[Problem]:
    first = history.logged[0]
    if first.step == 0:
        yield from _judge_zeros(first)
    yield from _judge_logprob(first)
    yield from _judge_gradient(history)


def _judge_zeros(first: LoggedStep) -> Iterator[Problem]:
    for text, is_own, otherwise in COMPARED:
        unequal = {
            name: value
            for name, value in first.zeros.items()
            if abs(value) > SAME and name.endswith("ppo_kl") == is_own
        }
        if unequal:
            name = max(unequal, key=lambda each: abs(unequal[each]))
            yield Problem(
                f"step 0: {name} is {unequal[name]:.3g}, where {text}",
                severity="error" if abs(unequal[name]) > ROUNDING and not is_own else None,
                hint=f"have kernels repeat themselves: --attention-backend flash, with experts --moe-permute-fusion; {otherwise}",
            )


def _judge_logprob(first: LoggedStep) -> Iterator[Problem]:
    guess = guess_logprob(None)
    if first.logprob is None or guess is None or first.logprob >= LIMIT:
        return
    text = f"step {first.step}: the trainer's mean logprob is {first.logprob:.3g}; a model gives its own text more than {LIMIT:g}"
    if first.logprob >= UNLIKELY * guess:
        yield Problem(text, severity="info", hint="decode a prompt, and compare it with the chat template")
        return
    yield Problem(
        text,
        severity="error" if first.logprob < HOPELESS * guess else None,
        hint="print the rollout's texts: if they are none, the engine has other weights (ckptcheck attach); else see in the log"
        " that the trainer loaded the checkpoint",
    )


def _judge_gradient(history: History) -> Iterator[Problem]:
    norms = [
        (each.step, each.gradient) for each in history.logged if each.gradient is not None and isfinite(each.gradient)
    ]
    if norms and norms[0][1] >= HUGE:
        above = sum(norm >= HUGE for _, norm in norms)
        yield Problem(
            f"step {norms[0][0]}: the norm of the gradient is {norms[0][1]:.3g}; it is above {HUGE:,.0f} at {above:,} of"
            f" {count(len(norms), 'step')}",
            hint="with experts set --moe-permute-fusion; see that the loss is divided by its tokens",
        )
    elif len(norms) >= ENOUGH and not any(norm for _, norm in norms):
        yield Problem(
            f"the gradient is 0 at each of {count(len(norms), 'step')}",
            hint="see whether the rewards of a group differ, and whether the optimizer holds what is to be trained",
        )
