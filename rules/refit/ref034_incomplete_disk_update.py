"""The server did not load the whole checkpoint from its disk.

## What it checks
- With `--allow-write`, ckptcheck makes the server overwrite its weights (with random numbers in SGLang, zeros in vLLM)
  and then load SOURCE from its disk.
- Every tensor then has the checksum that the same engine has when it starts from SOURCE. If ckptcheck could start no
  such engine, every tensor has another checksum than after the overwrite.
- The server reports the weight version that the update set.
- The rule reports an update that failed or was interrupted.

## Why it matters
- An update that skips tensors leaves old ones in place. While they are nearly the same, outputs do not show it.

## How to fix
- Restart the server, because its weights are not those of any checkpoint. Then look at the tensors in the message.

## When it can be wrong
- Without a reference, ckptcheck does not know the right value of a tensor. It does not see a wrong value, and it reports
  a tensor for which SOURCE has the same numbers as the overwrite (zeros).

## Seen in
sgl-project/sglang#15398 (a head that is not loaded), sgl-project/sglang#27718 (draft weights that no update reaches)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.running_servers.comparability import reference_mismatch
from ckptcheck.live.refit.running_servers.trace import ServerEvidence, ServerState, UpdateTrial
from ckptcheck.live.runtime.servers.layout import is_draft
from ckptcheck.text.formatting import count, join_truncated

EMPTY: frozenset[str] = frozenset()
RESTART = "restart it: its weights are not those of any checkpoint"


def _has_update(evidence: ServerEvidence) -> bool:
    return any(server.update_trial or "update" in server.refusals for server in evidence.servers)


@rule("REF034", "incomplete-disk-update", severity="error", on="servers", when=_has_update)
def check(evidence: ServerEvidence) -> Iterator[Problem]:
    for server in evidence.servers:
        if server.update_trial is not None:
            yield from _check_update(server, server.update_trial, evidence)
    for server in evidence.servers:
        if "update" in server.refusals:
            raise Skip(server.refusals["update"])


def _check_update(server: ServerState, update: UpdateTrial, evidence: ServerEvidence) -> Iterator[Problem]:
    if not update.result.ok:
        yield Problem(
            f"{server.url} overwrote its weights, and it is unknown whether it loaded {evidence.target}:"
            f" {update.result.message}",
            hint=RESTART,
        )
        return
    reference = evidence.reference
    cold = reference.weights if reference is not None and not reference_mismatch(server, reference) else {}
    expected = cold or server.merge_copies(update.before)
    scrambled, after = server.merge_copies(update.scrambled), server.merge_copies(update.after)
    wrong_places = [place for place, value in expected.items() if after.get(place) != value]
    still_scrambled = {place for place in wrong_places if after.get(place, EMPTY) & scrambled.get(place, EMPTY)}
    overwritten = [place.partition("/")[2] for place in wrong_places if place in still_scrambled]
    different = [place.partition("/")[2] for place in wrong_places if place not in still_scrambled] if cold else []
    drafts = [
        place.partition("/")[2]
        for place, value in update.after.items()
        if is_draft(place) and value == update.scrambled.get(place) != update.before.get(place)
    ]
    tensors = count(len(expected), "tensor")
    for names, what, hint in (
        (overwritten, f"reported success, but did not load {len(overwritten):,} of {tensors} again", RESTART),
        (
            drafts,
            f"reported success, but did not load {count(len(drafts), 'tensor')} of its draft model again",
            "update the draft model separately, or restart the server: the draft model proposes noise",
        ),
        (
            different,
            f"loaded {len(different):,} of {tensors} differently from an engine that was started from the same checkpoint",
            RESTART,
        ),
    ):
        if names:
            yield Problem(f"{server.url} {what}: {join_truncated(names)}", key=names[0], hint=hint, names=tuple(names))
    is_version_wrong = update.reported_version and update.reported_version != update.requested_version
    if is_version_wrong and not (overwritten or drafts or different):
        yield Problem(
            f"{server.url} got the weight version {update.requested_version} with the update, but reports"
            f" {update.reported_version}",
            hint="set the version in a call of its own after every update",
        )
