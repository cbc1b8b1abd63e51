"""The server was told to load a checkpoint from its disk, and did not load all of it.

## What it checks
With `--allow-write`: the server's weights are overwritten by its own checker (random numbers in SGLang, zeros in vLLM), it is
told to load SOURCE from its disk, and every tensor then has the checksum that the same engine has when it is started from
SOURCE; where none could be started, the checksum that it had before. The weight version is the one it was given.

## Why it matters
An update that skips tensors leaves old ones in place, which nobody sees as long as they are nearly the same. After overwriting,
they are not.

## How to fix
Restart the server: its weights are not those of any checkpoint. Then look at which tensors are named.

## When it can be wrong
Without a reference, a server that did not serve SOURCE before is held against what it served.

## Seen in
sgl-project/sglang#15398 (a head that is not loaded), sgl-project/sglang#27718 (draft weights that no update reaches)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.attached import Attached, Seen

RESTART = "restart it: its weights are those of no checkpoint"


def _asked(evidence: Attached) -> bool:
    return any(seen.written or "update" in seen.refused for seen in evidence.servers)


@rule("REF034", "incomplete-disk-update", severity="error", on="servers", when=_asked)
def check(evidence: Attached) -> Iterator[Problem]:
    looked = 0
    for seen in evidence.servers:
        if seen.written is None:
            continue
        looked += 1
        yield from _of(seen, evidence)
    if not looked:
        raise Skip(next(seen.refused["update"] for seen in evidence.servers if "update" in seen.refused))


def _of(seen: Seen, evidence: Attached) -> Iterator[Problem]:
    written = seen.written
    assert written is not None
    if not written.answer.ok:
        yield Problem(f"{seen.url} could not load {evidence.target}: {written.answer.message}", hint=RESTART)
        return
    cold = evidence.reference is not None and not evidence.unfit
    expected = evidence.reference.checksums if evidence.reference is not None and cold else written.before
    wrong = [name for name, value in expected.items() if written.after.get(name) != value]
    left = [name.partition("/")[2] for name in wrong if written.after.get(name) == written.scrambled.get(name)]
    other = [name.partition("/")[2] for name in wrong if written.after.get(name) != written.scrambled.get(name)]
    if left:
        yield Problem(
            f"{seen.url} answered success and left {count(len(left), 'tensor')} of {len(expected):,} overwritten: {few(left)}",
            key=left[0],
            hint=RESTART,
        )
    if other:
        what = "an engine that was started from the same checkpoint" if cold else "it had before"
        yield Problem(
            f"{seen.url} loaded {count(len(other), 'tensor')} of {len(expected):,} otherwise than {what}: {few(other)}",
            key=other[0],
            hint=RESTART,
        )
    if not wrong and written.told and written.told != written.asked:
        yield Problem(
            f"{seen.url} was given the weight version {written.asked} with the update and reports {written.told}",
            hint="set the version by itself after every update",
        )
