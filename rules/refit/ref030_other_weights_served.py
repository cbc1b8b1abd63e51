"""The server holds other weights than the checkpoint it should serve.

## What it checks
- ckptcheck starts the same engine here from SOURCE, with the same dtype, quantization, and tensor, pipeline and
  expert parallelism (in SGLang also data parallelism of attention). Every tensor of the server has the checksum of
  that reference.
- The engine computes both checksums, so the rule needs no knowledge of fused, sharded or packed layouts.
- The rule compares every data-parallel copy with the one reference.
- No checksum of a server is the hash of zero bytes (a warning).

## Why it matters
- The server samples from another model than the one that is trained or evaluated, and answers 200 OK.

- vLLM on a CPU packs its matrices and leaves parameters of size 0 behind. Their checksums are equal on every server, whatever it
  computes with, so they prove nothing. Only logprobs can show a fault.

## How to fix
- Have the server load the checkpoint (`--allow-write` does and checks the result), or restart it.
- If only some tensors differ, look at the sync.

## When it can be wrong
- Checksums compare only between the same engine version, dtype, layout and kind of device. If those differ, or if the
  server uses a setting that moves weights (redundant experts, context parallelism, LoRA), the rule is skipped.
- Ranks that give no checksums (in SGLang all pipeline stages but the first) and draft models are not compared. The
  rule compares the rest and then counts as skipped.
- SGLang's checksums leave out rotary caches, and those of FP8 blocks are of the dequantized weight.
- Tensors that the engine packed into an opaque format are left out. The warning about them is no fault of the server: it says how
  far you can trust the report. Give a SOURCE, so that logprobs are compared with a trainer.

## Seen in
NVIDIA-NeMo/RL#3259 (half of the layers never synced), volcengine/verl#7495 (the base model pushed for months); vLLM 0.32.0
on CPUs (checksums of no bytes)
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.running_servers.comparability import differing_places, reference_mismatch
from ckptcheck.live.refit.running_servers.trace import ServerEvidence, ServerState
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF030",
    "other-weights-served",
    severity="error",
    on="servers",
    when=lambda evidence: (
        evidence.reference is not None
        or bool(evidence.reference_skipped)
        or any(server.checksums for server in evidence.servers)
    ),
)
def check(evidence: ServerEvidence) -> Iterator[Problem]:
    for server in evidence.servers:
        yield from _find_empty_checksums(server, has_scores=bool(evidence.trainer_scores))
    reference = evidence.reference
    if reference is None:
        if evidence.reference_skipped:
            raise Skip(evidence.reference_skipped)
        return
    expected = reference.weights
    skip_reasons = []
    if not expected:
        skip_reasons = [reference.refusals.get("checksums") or reference.dead_reason or "no weight of it can be read"]
    for server in evidence.servers:
        reason = reference_mismatch(server, reference) or server.refusals.get("checksums") or server.dead_reason
        if reason or not (expected and server.weights):
            skip_reasons.append(reason or f"no weight of {server.url} can be read")
            continue
        yield from _compare_weights(server, evidence.target, expected)
        if server.missing_ranks:
            skip_reasons.append(server.missing_ranks)
        if server.draft_checksums:
            tensors = count(len(server.draft_checksums), "tensor")
            skip_reasons.append(f"{server.url} also has a draft model, which was not compared: {tensors}")
    if skip_reasons:
        raise Skip(skip_reasons[0])


def _compare_weights(server: ServerState, target: str, expected: Mapping[str, frozenset[str]]) -> Iterator[Problem]:
    if server.missing_ranks:
        ranks = {place.partition("/")[0] for place in server.weights}
        expected = {place: value for place, value in expected.items() if place.partition("/")[0] in ranks}
    different = differing_places(server.weights, expected)
    if not different:
        return
    names = [place.partition("/")[2] for place in different]
    missing_places = [place for place in expected if place not in server.weights and place not in server.checksums]
    total = len(expected.keys() | server.weights.keys())
    yield Problem(
        f"{server.url} serves other weights than {target} in {len(names):,} of {count(total, 'tensor')}:"
        f" {join_truncated(names)}"
        + (f"; it lacks {count(len(missing_places), 'tensor')} of the checkpoint" if missing_places else ""),
        key=names[0],
        hint="if it should serve this checkpoint, have it load it again (--allow-write), and look at what syncs it",
        names=tuple(names),
    )


def _find_empty_checksums(server: ServerState, *, has_scores: bool) -> Iterator[Problem]:
    empty = [place.partition("/")[2] for place in server.checksums if place not in server.readable_checksums]
    if empty:
        yield Problem(
            f"{server.url} gives the checksum of zero bytes for {len(empty):,} of {count(len(server.checksums), 'tensor')},"
            f" which it packed: {join_truncated(empty)}; only logprobs can show whether"
            f" {'it is' if len(empty) == 1 else 'they are'} right",
            key=empty[0],
            hint="" if has_scores else "give the checkpoint as SOURCE, so that logprobs are compared",
            severity="warning",
            names=tuple(empty),
        )
