"""A version of the engine that is known to update such weights wrongly.

## What it checks
The engine's version, device and kinds of weights are held against a list of known faults (`ckptcheck/engines/known.toml`).

## Why it matters
Many faults show only on the hardware, or with the kernels, of a job. A trial elsewhere is then clean and the job is not.

## How to fix
As the entry says: another version, another route, or a restart in place of an update.

## When it can be wrong
A fault that was repaired without anybody telling us stays on the list until its entry gets a last version.

## Seen in
vllm-project/vllm#42821, sgl-project/sglang#14158, sgl-project/sglang#27718
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.engines.known import faults, traits
from ckptcheck.refit.trace import RefitTrace


@rule("REF024", "known-bad-version", severity="warning", on="refit", when=lambda trace: bool(trace.cold))
def check(trace: RefitTrace) -> Iterator[Problem]:
    assert trace.engine is not None
    info = trace.engine
    for known in faults(info.name, info.version, traits(info, trace.cold)):
        where = f" ({', '.join(known.issues)})" if known.issues else ""
        yield Problem(f"{info.name} {info.version}: {known.what}{where}", hint=known.instead)
