"""The server holds other weights than the checkpoint that it should serve.

## What it checks
Every tensor has, by the server's own checksum, what the same engine has that was started here from SOURCE with the same dtype,
quantization, and tensor, pipeline and expert parallelism (in SGLang also of attention's data parallelism). So no knowledge of
fused, sharded or packed layouts is needed. Every data-parallel copy is held against the one model that was started here.

## Why it matters
It samples from another model than the one that is trained or evaluated, and answers 200 OK.

## How to fix
Have it load the checkpoint (`--allow-write` does, and checks it), or restart it. If only some tensors differ, look at the sync.

## When it can be wrong
The checksum has to be of the same engine version, dtype, layout and kind of device; where they differ, and where the server is set
to something else that moves weights (redundant experts, context parallelism, LoRA), this is skipped. So it is, once the rest was
compared, for ranks that give no checksums (in SGLang all pipeline stages but the first) and for a draft model. SGLang's checksums
leave out caches of rotary angles, and those of FP8 blocks are of the dequantized weight. Tensors that were packed
into something opaque are left out, see REF032.

## Seen in
NVIDIA-NeMo/RL#3259 (half of the layers never synced), volcengine/verl#7495 (the base model pushed for months)
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.attached import Attached, Seen
from ckptcheck.refit.compared import differing, unlike


@rule(
    "REF030",
    "other-weights-served",
    severity="error",
    on="servers",
    when=lambda evidence: evidence.reference is not None or bool(evidence.unfit),
)
def check(evidence: Attached) -> Iterator[Problem]:
    reference = evidence.reference
    if reference is None:
        raise Skip(evidence.unfit)
    expected = reference.weights
    unseen = [] if expected else [reference.refused.get("checksums") or reference.dead or "no weight of it can be read"]
    for seen in evidence.servers:
        why = unlike(seen, reference) or seen.refused.get("checksums") or seen.dead
        if why or not (expected and seen.weights):
            unseen.append(why or f"no weight of {seen.url} can be read")
            continue
        yield from _of(seen, evidence.target, expected)
        held = count(len(seen.drafts), "tensor")
        drafts = f"{seen.url} has a draft model beside, which was held against nothing: {held}"
        unseen += [why for why in (seen.silent, drafts if seen.drafts else "") if why]
    if unseen:
        raise Skip(unseen[0])


def _of(seen: Seen, target: str, expected: Mapping[str, frozenset[str]]) -> Iterator[Problem]:
    if seen.silent:
        told = {place.partition("/")[0] for place in seen.weights}
        expected = {place: value for place, value in expected.items() if place.partition("/")[0] in told}
    wrong = differing(seen.weights, expected)
    if not wrong:
        return
    names = [place.partition("/")[2] for place in wrong]
    absent = [place for place in expected if place not in seen.weights and place not in seen.checksums]
    yield Problem(
        f"{seen.url} holds other numbers than {target} in {count(len(names), 'tensor')} of"
        f" {len(expected.keys() | seen.weights.keys()):,}: {few(names)}"
        + (f"; {count(len(absent), 'tensor')} of the checkpoint it has not" if absent else ""),
        key=names[0],
        hint="have it load the checkpoint again (--allow-write), and look at what syncs it",
    )
