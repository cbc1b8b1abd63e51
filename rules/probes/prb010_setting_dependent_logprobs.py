"""A setting of the engine that should only change its speed changes its logprobs.

## What it checks
The engine computes the same tokens in two set-ups:

- `prefix-cache`: prompts longer than a block of the prefix cache twice, the second time from the cache; then decoded without a
  prefix cache.
- `scheduling`: asynchronous scheduling (SGLang: overlap scheduling) on and off.
- `chunks`: prompts whole, and in chunks of 16 tokens.
- `graphs`: eager mode, and graphs (CUDA graphs) of the same eager kernels.
- `inductor`: eager mode, and torch's inductor.
- `casts`: eager mode, and inductor that rounds between fused operations as eager mode does (TORCHINDUCTOR_EMULATE_PRECISION_CASTS).

The first three agree within 1e-3 nats in float32, and within a mult_prob_error of 1.05 in narrower dtypes. For the last three:

- Every logprob is held to atol = rtol = 1e-3, as NeMo-RL's diagnostic 4 does with numpy's assert_allclose. The report says how many
  are beyond it, the largest absolute and relative difference, where it is, and which are NaN in one mode alone.
- Beside them stands the floor: eager mode against itself, decoding against prefill and a prefill against its repetition.
- It is a warning where rounding does not explain it: in float32 from 1e-3 nats on (stricter than diagnostic 4, whose rtol allows
  a logprob of -10 eleven times as much), in narrower dtypes from a mult_prob_error of 1.05 or five times the floor's mean |Δ| on,
  where the floor is at least the dtype's rounding (0.005 nats): eager mode on a CPU repeats itself exactly, and rounds. Else it
  is info, as diagnostic 4 is no strict test: narrow dtypes fail it often.

## Why it matters
- With a prefix cache, identical prompts of one group get different logprobs, depending on the order in which they came.
- Defaults of scheduling and chunks change between versions of an engine, and with the memory of a GPU; teams then look for a gap
  that came with an upgrade in the weights.
- A trainer mostly runs eager kernels. Graphs replay the kernels that they captured, so only padded batch sizes should change; a gap
  means a kernel that was chosen for another shape, or a buffer whose content changed since the capture. Inductor leaves out the
  roundings between fused operations, which helps accuracy and hurts agreement; a gap that remains with `casts` has another cause.

## How to fix
Set it explicitly for rollouts, and tell the engine's maintainers.

- vLLM: `--no-enable-prefix-caching`, `--no-async-scheduling`, `--no-enable-chunked-prefill`, `--enforce-eager`, or
  `--compilation-config '{"backend": "eager"}'`, which keeps graphs; TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1 where `casts` closes
  the gap of `inductor`.
- SGLang: `--disable-radix-cache`, `--disable-overlap-schedule`, `--chunked-prefill-size -1`, `--disable-cuda-graph`.

## When it can be wrong
- Other batches, chunks, and batches that are padded to a captured size change the shapes of matrix products, and with them the
  rounding; the rule judges narrow dtypes by the mean. Recurrent layers can keep states of prefixes in a narrower dtype than they
  compute in.
- NeMo-RL does not treat its diagnostic 4 as a strict test: many models have such a gap under inductor and train well with it.
- In float32 there is nothing to round, and `casts` changes little.
- CPUs have no CUDA graphs: `graphs` is skipped there.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1, which held scheduling, chunks and caching still before it looked for other causes;
NVIDIA-NeMo/RL tools/model_diagnostics/4.vllm_precision_compilation_test.py: DeepSeek-R1-Distill-Qwen-1.5B is off by 0.39 nats with
and without `casts`, and agrees without inductor; NVIDIA-NeMo/RL#4243, where graphs were ruled out by hand, one switch after the
other
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.same_engine import CompilationResult, SetupsResult, find_differing_setups
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe

HINTS = {
    "scheduling": "set it explicitly for rollouts, as PipelineRL did for parity, and tell the engine's maintainers",
    "chunks": "set it explicitly for rollouts, and tell the engine's maintainers",
    "graphs": "run rollouts without graphs until it is known why, and tell the engine's maintainers",
    "inductor": "run rollouts eager, or with graphs but without inductor, if the gap to the trainer matters more than speed",
    "casts": "run rollouts without inductor, if the gap to the trainer matters more than speed",
}
"""Probe → what to do about its gap."""
PROBES = ("prefix-cache", *HINTS)


@rule("PRB010", "setting-dependent-logprobs", severity="warning", on="probe", when=requires_probe(*PROBES))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for probe, result in trace.list_results(*PROBES):
        if isinstance(result, CompilationResult):
            yield from _judge_compilation(result, HINTS[probe])
        elif isinstance(result, SetupsResult):
            for gap in find_differing_setups(result):
                if probe == "prefix-cache":
                    yield Problem(
                        f"after {result.cached} tokens from the prefix cache, decoding is up to {gap.largest:.3g} nats"
                        f" from decoding without it",
                        hint="turn the prefix cache off for rollouts, and tell the engine's maintainers",
                        severity="error",
                    )
                else:
                    yield Problem(
                        f"with {gap.setup} logprobs are up to {gap.largest:.3g} nats from those with {result.base}"
                        f" (mult_prob_error {gap.error:.4g})",
                        hint=HINTS[probe],
                    )


def _judge_compilation(result: CompilationResult, hint: str) -> Iterator[Problem]:
    if result.exceeds_rounding:
        yield Problem(result.describe_gap(), hint=hint)
    elif result.worse.elements.beyond:
        yield Problem(
            f"{result.describe_gap()}: rounding of {result.dtype} explains it",
            hint="do nothing, unless the gap to the trainer is too large: then run rollouts in eager mode",
            severity="info",
        )
