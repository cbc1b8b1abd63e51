"""ckptcheck could compare only the logprobs of a server with the signed weights.

## What it checks
`verify --attach` compares a server with the signed weights, if these are as they were signed. REF030 names the tensors that
differ in the server, and REF031 says that its logprobs do. This rule reports a server of which ckptcheck could compare the
logprobs and not the weights.

## Why it matters
Logprobs of a few sequences agree within a tolerance. Other weights can pass: another expert that no token reached, or the weights
before a small training step.

## How to fix
Let the server report checksums of its weights (SGLang does; vLLM does with `VLLM_SERVER_DEV_MODE=1`), and install the same engine
here (`ckptcheck engine install`, or `--set engine-python`). A vLLM with ckptcheck's extension reports the identity of its weights,
and needs no engine here.

## When it can be wrong
The engine quantizes the weights while it loads them, or this machine cannot start its layout: then only logprobs are comparable.

## Seen in
vLLM 0.32 without `VLLM_SERVER_DEV_MODE=1`: no answer of the server is made from its weights but logprobs
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.compare.signatures.signature_check import SignatureCheck
from ckptcheck.live.refit.running_servers.comparability import has_comparable_weights, holds_source
from ckptcheck.live.refit.running_servers.trace import ServerEvidence


@rule("SIG004", "unproven-weights", severity="warning", on="signature", when=lambda signature: signature.is_attached)
def check(signature: SignatureCheck) -> Iterator[Problem]:
    evidence = signature.served
    if not isinstance(evidence, ServerEvidence):
        raise Skip("the weights themselves are not as they were signed, so no server was asked")
    for server in evidence.servers:
        if server.dead_reason or has_comparable_weights(server, evidence) or holds_source(server, evidence):
            continue
        if server.scores and evidence.trainer_scores:
            reason = server.refusals.get("checksums") or evidence.reference_skipped or "they cannot be read"
            yield Problem(
                f"only logprobs of {server.url} were compared with those of the signed weights, not its weights: {reason}",
                hint="have it tell its weights, and install its engine here: see docs/attach.md",
            )
