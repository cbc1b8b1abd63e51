"""Trainer and engine use different tokenizers or chat templates.

## What it checks
- If the job names a tokenizer for one side, the other side has the same. The rule compares their tokens if both are on this
  machine; if not, their names show whether they are of different families.
- If the job names chat templates, both sides have the same one. An engine that renders conversations itself (NeMo-RL's HTTP
  server) gets the trainer's template.

## Why it matters
- A token id of one tokenizer is another word for the other side: the engine continues another text than the trainer sent, or an id
  lies outside its embedding.
- With another template the engine answers prompts that the trainer never sees: other markers of turns, another system prompt,
  another way to think. Rewards and logprobs then belong to different texts, and nothing fails.

## How to fix
Name the engine's model as tokenizer, or leave it out. In NeMo-RL set
`vllm_cfg.http_server_serving_chat_kwargs.chat_template` to the same value as `policy.tokenizer.chat_template`.

## When it can be wrong
Two templates in different files that render alike.

## Seen in
NVIDIA-NeMo/RL examples/nemo_gym/nemotron-3-super-omni/super_omni_launch.sh (sets both), PrimeIntellect-ai/prime-rl
`validate_shared_tokenizer`, radixark/miles `--chat-template-path` ("also sets --sglang-chat-template")
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.jobs.job import Job

MOST_DIFFERENT = 0.01
"""The share of tokens that may differ: an instruct model names a few special tokens differently from its base."""
FAMILIES = (
    "qwen", "qwq", "llama", "mistral", "mixtral", "gemma", "phi-", "deepseek", "glm", "gpt-oss", "olmo", "nemotron", "falcon",
    "internlm", "kimi", "moonlight", "minimax", "mimo", "ernie", "granite", "smollm", "seed-oss", "bloom", "pythia",
)  # fmt: skip
"""Parts of names by which models of one tokenizer are known. A name may have several: DeepSeek-R1-Distill-Qwen."""
OWN = (None, "none", "default", "passthrough", "")
"""Values of a chat template that name none."""


@rule(
    "JOB041",
    "foreign-tokenizer",
    severity="warning",
    on="job",
    when=lambda job: any(
        job[name].status in ("set", "unresolved")
        for name in ("trainer.tokenizer", "engine.tokenizer", "trainer.chat_template", "engine.chat_template")
    ),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.tokenizer", "engine.tokenizer", "trainer.chat_template", "engine.chat_template")
    yield from _check_template(job)
    yield from _check_tokenizer(job)


def _check_template(job: Job) -> Iterator[Problem]:
    """Yield what is wrong with the chat templates."""
    trainer, engine = job.text("trainer.chat_template"), job.text("engine.chat_template")
    if trainer in OWN:
        return
    if engine not in OWN and engine != trainer:
        yield job.problem(
            f"the engine's chat template is {clip(str(engine), 60)!r} ({job['engine.chat_template'].place}), the trainer's"
            f" {clip(str(trainer), 60)!r} ({job['trainer.chat_template'].place})",
            at="engine.chat_template",
            hint="give both the same template",
        )
    elif engine in OWN and job.flag("engine.renders_chats"):
        yield job.problem(
            f"the engine renders conversations itself ({job['engine.renders_chats'].place}) with the template of its model, and the"
            f" trainer has another one ({job['trainer.chat_template'].place})",
            at="trainer.chat_template",
            hint="set http_server_serving_chat_kwargs.chat_template to the same template",
        )


def _check_tokenizer(job: Job) -> Iterator[Problem]:
    """Yield what is wrong with the tokenizers. Raises Skip where they cannot be compared."""
    trainer = "trainer.tokenizer" if job.text("trainer.tokenizer") else "checkpoint.model"
    engine = "engine.tokenizer" if job.text("engine.tokenizer") else "checkpoint.model"
    names = job.text(trainer), job.text(engine)
    if None in names or names[0] == names[1]:
        return
    at = trainer if trainer != "checkpoint.model" else engine
    both = f"the trainer's tokenizer is {job.describe(trainer)}, the engine's {job.describe(engine)}"
    ours, theirs = (job.tokenizers[name].vocabulary if name in job.tokenizers else None for name in (trainer, engine))
    hint = "name the engine's model as tokenizer, or leave it out"
    if ours is not None and theirs is not None:
        different = sum(theirs.ids.get(token) != number for token, number in ours.ids.items())
        if different > MOST_DIFFERENT * len(ours.ids):
            yield job.problem(
                f"{both}: {different:,} of the {len(ours.ids):,} tokens have another id there, or none",
                at=at,
                severity="error",
                hint=hint,
            )
        return
    families = [{family for family in FAMILIES if family in str(name).lower()} for name in names]
    if families[0] and families[1] and not families[0] & families[1]:
        yield job.problem(f"{both}: they are of different families", at=at, hint=hint)
    elif not (families[0] & families[1]):
        raise Skip(f"{both}; ckptcheck compares their tokens where both are on this machine")
