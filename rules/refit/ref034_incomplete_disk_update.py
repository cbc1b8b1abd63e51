"""The server was told to load a checkpoint from its disk, and did not load all of it.

## What it checks
With `--allow-write`: the server's weights are overwritten by its own checker (random numbers in SGLang, zeros in vLLM), it is
told to load SOURCE from its disk, and every tensor then has the checksum that the same engine has when it is started from
SOURCE; where none could be started, another than while it was overwritten. The weight version is the one it was given. An
update that failed, or that was interrupted, is told.

## Why it matters
An update that skips tensors leaves old ones in place, which nobody sees as long as they are nearly the same. After overwriting,
they are not.

## How to fix
Restart the server: its weights are not those of any checkpoint. Then look at which tensors are named.

## When it can be wrong
Without a reference, nobody knows what a tensor should be: one that was loaded otherwise than it should is not seen, and one that
was overwritten with the very numbers that SOURCE has for it (zeros) is named though nothing is wrong.

## Seen in
sgl-project/sglang#15398 (a head that is not loaded), sgl-project/sglang#27718 (draft weights that no update reaches)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.attached import Attached, Seen, Written
from ckptcheck.refit.compared import unlike
from ckptcheck.servers.layout import of_draft

NEVER: frozenset[str] = frozenset()
RESTART = "restart it: its weights are those of no checkpoint"


def _asked(evidence: Attached) -> bool:
    return any(seen.written or "update" in seen.refused for seen in evidence.servers)


@rule("REF034", "incomplete-disk-update", severity="error", on="servers", when=_asked)
def check(evidence: Attached) -> Iterator[Problem]:
    for seen in evidence.servers:
        if seen.written is not None:
            yield from _of(seen, seen.written, evidence)
    for seen in evidence.servers:
        if "update" in seen.refused:
            raise Skip(seen.refused["update"])


def _of(seen: Seen, written: Written, evidence: Attached) -> Iterator[Problem]:
    if not written.answer.ok:
        yield Problem(
            f"{seen.url} was overwritten and is not known to hold {evidence.target}: {written.answer.message}",
            hint=RESTART,
        )
        return
    reference = evidence.reference
    cold = reference.weights if reference is not None and not unlike(seen, reference) else {}
    expected = cold or seen.held(written.before)
    scrambled, after = seen.held(written.scrambled), seen.held(written.after)
    wrong = [place for place, value in expected.items() if after.get(place) != value]
    kept = {place for place in wrong if after.get(place, NEVER) & scrambled.get(place, NEVER)}
    left = [place.partition("/")[2] for place in wrong if place in kept]
    other = [place.partition("/")[2] for place in wrong if place not in kept] if cold else []
    drafts = [
        place.partition("/")[2]
        for place, value in written.after.items()
        if of_draft(place) and value == written.scrambled.get(place) != written.before.get(place)
    ]
    if left:
        yield Problem(
            f"{seen.url} answered success and left {count(len(left), 'tensor')} of {len(expected):,} overwritten: {few(left)}",
            key=left[0],
            hint=RESTART,
        )
    if drafts:
        yield Problem(
            f"{seen.url} answered success and left {count(len(drafts), 'tensor')} of its draft model overwritten: {few(drafts)}",
            key=drafts[0],
            hint="update the draft model by itself, or restart it: what it drafts is noise",
        )
    if other:
        yield Problem(
            f"{seen.url} loaded {count(len(other), 'tensor')} of {len(expected):,} otherwise than an engine that was started from"
            f" the same checkpoint: {few(other)}",
            key=other[0],
            hint=RESTART,
        )
    if not (left or drafts or other) and written.told and written.told != written.asked:
        yield Problem(
            f"{seen.url} was given the weight version {written.asked} with the update and reports {written.told}",
            hint="set the version by itself after every update",
        )
