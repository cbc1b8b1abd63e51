"""The engine speculates with a draft that no weight update changes.

## What it checks
Where the engine speculates with a draft model or the model's MTP layers, the trainer trains them, so that updates bring them
along. A draft of its own, in an engine that starts with dummy weights, has to be loaded.

## Why it matters
- If a draft stays while the policy moves, the engine accepts its tokens less and less often. Samples stay right (the engine draws
  rejected tokens anew), and the speedup is lost: an info.
- An engine that starts with `load_format: dummy` has random weights until the first update. A draft that no update sends keeps
  them: the engine accepts none of its tokens, and every step costs more than without speculation: a warning. verl and ROLL start
  vLLM so.

## How to fix
- slime, miles: `--mtp-num-layers 1 --enable-mtp-training`.
- verl: `actor_rollout_ref.model.mtp.enable_train=True`; with a draft of its own, `rollout.load_format=auto`.
- NeMo-RL: `policy.draft.enabled: true`, or `megatron_cfg.mtp_num_layers`.
- Or watch the acceptance rate, and turn speculation off where it falls.

## When it can be wrong
The draft is frozen on purpose, as in most of slime's scripts. n-gram and suffix drafts have no weights, and are not reported.

## Seen in
slime docs/en/advanced/speculative-decoding.md, NVIDIA-NeMo/RL nemo_rl/models/generation/__init__.py
(`configure_generation_config`), verl-project/verl verl/workers/rollout/vllm_rollout/vllm_async_server.py
(`_resolve_sleep_level`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix", "lookahead", "none")
"""Methods of speculating that have no weights."""
OF_THE_MODEL = ("mtp", "deepseek_mtp", "nextn", "eagle")
"""Methods that use layers of the model's own checkpoint, where no other checkpoint is named."""


@rule(
    "JOB043",
    "unsynced-draft",
    severity="info",
    on="job",
    when=lambda job: job.updates_weights and bool(job.flag("engine.draft")) and not job.flag("debug.rollout_only"),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.trains_draft", "engine.draft_method", "engine.draft_model", "engine.load_format")
    method = (job.text("engine.draft_method") or "").lower()
    if method in WITHOUT_WEIGHTS or job.flag("trainer.trains_draft"):
        return
    own = job["engine.draft_model"].is_known and job.text("engine.draft_model") not in (None, "none")
    if job.engine == "vllm" and job.text("engine.load_format") == "dummy" and (own or method not in OF_THE_MODEL):
        yield job.problem(
            f"the engine speculates with a draft of its own ({job['engine.draft'].place}) and starts with dummy weights"
            f" ({job['engine.load_format'].place}), and no update sends the draft: it stays random, and nothing that it proposes"
            " is accepted",
            at="engine.draft",
            severity="warning",
            hint="set load_format to auto",
        )
    else:
        trained = job["trainer.trains_draft"].place
        yield job.problem(
            f"the engine speculates with a draft ({job['engine.draft'].place}) that the trainer does not train"
            f"{f' ({trained})' if trained else ''}: it stays as it is while the policy moves, and is accepted less and less often",
            at="engine.draft",
            hint="train the draft too, or watch its acceptance rate",
        )
