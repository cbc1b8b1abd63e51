"""The critic reads the actor's tokens, and has another vocabulary.

## What it checks
In a job whose advantages need a critic, for an actor and a critic that are on this machine:
- every id of the actor's tokenizer is below the critic's `vocab_size`;
- at most 1 % of the actor's tokens have another id in the critic's tokenizer, or none.

## Why it matters
The critic gets the token ids of the actor's rollouts. An id beyond its embedding stops the job with an index error or an
assertion on the GPU; with another vocabulary the critic reads other words, and its values are noise.

## How to fix
Start the critic from the actor's model, or from a reward model of the same family.

## When it can be wrong
A trainer that decodes the rollouts and encodes them again for the critic; ROLL and verl do not.

## Seen in
alibaba/ROLL at 8eb27cc2 (`reward_pretrain` is what a critic starts from unless it names a model), verl at b178a3cd5
(`critic.model.path`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job

MOST_DIFFERENT = 0.01
"""The share of tokens that may differ: an instruct model names a few special tokens differently from its base."""


@rule(
    "JOB035",
    "foreign-critic-vocabulary",
    severity="error",
    on="job",
    when=lambda job: job.flag("critic.enabled") is True and "checkpoint.critic" in job.checkpoints,
)
def check(job: Job) -> Iterator[Problem]:
    critic, actor = job.checkpoints["checkpoint.critic"], job.checkpoints.get("checkpoint.model")
    if actor is None:
        raise Skip("the actor's checkpoint is not named")
    if critic is actor:
        return
    if reasons := [checkpoint.name_decider("tokenizer.json") for checkpoint in (actor, critic) if checkpoint.reason]:
        raise Skip("; ".join(reasons))
    if actor.vocabulary is None:
        raise Skip(f"the token ids of {actor.named} are not known")
    ids = actor.vocabulary.ids
    highest = max(ids.values(), default=0)
    if critic.vocab_size is not None and highest >= critic.vocab_size:
        yield job.problem(
            f"the tokenizer of {actor.named} has ids up to {highest:,}, and the embedding of the critic, {critic.named}, has"
            f" {critic.vocab_size:,} rows",
            at="checkpoint.critic",
            hint="start the critic from the actor's model, or from one with its tokenizer",
        )
    elif critic.vocabulary is not None:
        other = critic.vocabulary.ids
        different = sum(other.get(token) != number for token, number in ids.items())
        if different > MOST_DIFFERENT * len(ids):
            yield job.problem(
                f"{different:,} of the {len(ids):,} tokens of {actor.named} have another id, or none, in the critic's tokenizer"
                f" ({critic.named})",
                at="checkpoint.critic",
                hint="start the critic from the actor's model, or from one with its tokenizer",
            )
    else:
        raise Skip(f"the token ids of {critic.named} are not known")
