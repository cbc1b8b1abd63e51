"""The engine takes sampling parameters of the rollouts from the model's generation_config.json.

## What it checks
Where a job's requests name only some sampling parameters, vLLM runs with `--generation-config vllm`. With `auto`, the default since
vLLM 0.8, its server takes temperature, top-p, top-k, min-p and repetition penalty that a request leaves out from the model's
generation_config.json. Where that file is on this machine, the rule names what it brings; where it is not, it says so.

## Why it matters
- The rollouts are sampled from another distribution than the configuration says, and nothing in the configuration shows it. Qwen2.5
  brings a repetition penalty of 1.05, top-p 0.8 and top-k 20.
- The trainer computes its logprobs without them: JOB001, JOB003 and JOB026 then report those parameters too.

## How to fix
`--generation-config vllm` (PipelineRL: `vllm_config.vllm_kwargs.generation-config: vllm`), or write every parameter down.

## When it can be wrong
A checkpoint on the Hub may have no such file, or one without sampling parameters.

## Seen in
vllm-project/vllm#12622, vllm-project/vllm#15241, PipelineRL's conf/base.yaml (`generation-config: vllm`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job, shown
from ckptcheck.jobs.named_checkpoints import FILE, NEUTRAL, takes_model_defaults


@rule("JOB053", "model-sampling", severity="warning", on="job", when=takes_model_defaults)
def check(job: Job) -> Iterator[Problem]:
    place, hint = job["engine.generation_config"].place, "set generation-config to vllm, or write every parameter down"
    brought = {
        name: setting
        for name in NEUTRAL
        if (leaf := (setting := job[f"rollout.{name}"]).leaf) is not None and (leaf.file or "").endswith(f"/{FILE}")
    }
    if brought:
        values = ", ".join(f"{name} {shown(setting.value)}" for name, setting in brought.items())
        yield job.problem(
            f"requests leave out {values}: generation-config is auto ({place}), so the engine takes"
            f" {'it' if len(brought) == 1 else 'them'} from {FILE} of {job.text('checkpoint.model')}",
            at="engine.generation_config" if job["engine.generation_config"].leaf else "checkpoint.model",
            hint=hint,
        )
        return
    checkpoint = job.checkpoints.get("checkpoint.model")
    left_out = [name for name in NEUTRAL if job[f"rollout.{name}"].status not in ("set", "unresolved")]
    if checkpoint is not None and checkpoint.reason and left_out:
        yield job.problem(
            f"requests leave out {', '.join(left_out)}: generation-config is auto ({place}), so the engine takes them from {FILE}"
            f" of {checkpoint.named}, if it has them; {checkpoint.reason.partition(':')[0]}",
            at="engine.generation_config" if job["engine.generation_config"].leaf else "checkpoint.model",
            severity="info",
            hint=hint,
        )
