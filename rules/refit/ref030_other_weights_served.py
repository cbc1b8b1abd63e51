"""The server holds other weights than the checkpoint that it should serve.

## What it checks
Every tensor has, by the server's own checksum, what the same engine has that was started here from SOURCE with the same dtype and
ranks. So no knowledge of fused, sharded or packed layouts is needed.

## Why it matters
It samples from another model than the one that is trained or evaluated, and answers 200 OK.

## How to fix
Have it load the checkpoint (`--allow-write` does, and checks it), or restart it. If only some tensors differ, look at the sync.

## When it can be wrong
The checksum has to be of the same engine version, dtype, layout and kind of device; where they differ this is skipped. SGLang's
checksums leave out caches of rotary angles, and those of FP8 blocks are of the dequantized weight. Tensors that were packed
into something opaque are left out, see REF032.

## Seen in
NVIDIA-NeMo/RL#3259 (half of the layers never synced), volcengine/verl#7495 (the base model pushed for months)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.attached import Attached


@rule(
    "REF030",
    "other-weights-served",
    severity="error",
    on="servers",
    when=lambda evidence: evidence.reference is not None or bool(evidence.unfit),
)
def check(evidence: Attached) -> Iterator[Problem]:
    if evidence.unfit or evidence.reference is None:
        raise Skip(evidence.unfit)
    expected = evidence.reference.readable
    looked = [seen for seen in evidence.servers if seen.readable]
    if not looked or not expected:
        refusals = [seen.refused.get("checksums") or seen.dead for seen in (*evidence.servers, evidence.reference)]
        raise Skip(next((why for why in refusals if why), "no weight of it can be read"))
    for seen in looked:
        held = {**expected, **seen.readable}  # the order of the engine
        wrong = [name for name in held if expected.get(name) != seen.readable.get(name)]
        if not wrong:
            continue
        names = [name.partition("/")[2] for name in wrong]
        absent = [name.partition("/")[2] for name in expected if name not in seen.checksums]
        yield Problem(
            f"{seen.url} holds other numbers than {evidence.target} in {count(len(names), 'tensor')} of {len(held):,}: {few(names)}"
            + (f"; {count(len(absent), 'tensor')} of the checkpoint it has not" if absent else ""),
            key=names[0],
            hint="have it load the checkpoint again (--allow-write), and look at what syncs it",
        )
    for seen in evidence.servers:
        if not seen.readable:
            raise Skip(seen.refused.get("checksums") or seen.dead or f"no weight of {seen.url} can be read")
