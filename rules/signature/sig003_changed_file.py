"""A file is not as it was signed.

## What it checks
- Every file that the signature covers has the bytes that were signed.
- Where `ckptcheck sign` signed, its manifest is among the signed files: a finding names the tensors whose values, dtype, shape,
  name, file or place changed, and says where a tensor holds what another one held.
- Of a signature by ranges of bytes (`model_signing` with shards), a finding names the tensors that lie in the changed ranges.

## Why it matters
These are not the weights, or not the settings, that the signer released. `model_signing verify` refuses them, and names the file.

## How to fix
Fetch the file again. If the change is yours and intended, sign again.

## When it can be wrong
A tool that only rewrites a header or a config, such as a new transformers on `save_pretrained`, changes files without changing
weights; the finding says so, and the signature is broken all the same.

## Seen in
sigstore/model-transparency: `Hash mismatch for` names the file, and no tensor
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.changed_tensors import find_changes
from ckptcheck.compare.signatures.signature_check import SignatureCheck, list_tensors
from ckptcheck.text.formatting import count, join_truncated

HINT = "fetch the file again from whoever signed it, or sign again if the change is intended"


@rule("SIG003", "changed-file", severity="error", on="signature")
def check(signature: SignatureCheck) -> Iterator[Problem]:
    signature.require_this_model()
    others = []
    for file in dict.fromkeys(item.file for item in signature.files.changed):
        what, names = _describe(signature, file)
        if what:
            yield Problem(
                f"it is not the file that was signed: {what}", file, min(names, default=None), HINT, names=names
            )
        else:
            others.append(file)
    if others:
        number = f"{count(len(others), 'file is', 'files are')} not as signed"
        yield Problem(f"{number}: {join_truncated(others)}", others[0], hint=HINT, names=tuple(others))


def _describe(signature: SignatureCheck, file: str) -> tuple[str, tuple[str, ...]]:
    """Say which tensors of a file changed, with their names; "" where it holds none that is known."""
    if signature.verification is not None:
        changes = find_changes(signature.verification, file)
        return changes.describe(), changes.names
    ranges = [(item.begin, item.end) for item in signature.files.changed if item.file == file]
    names = tuple(list_tensors(signature, file, ranges))
    if not names:
        return "", ()
    if any(end is not None for _, end in ranges):
        return f"what changed lies in {join_truncated(names)}", names
    reason = signature.unnamed or "the signature covers no manifest that says which of them changed"
    return f"it holds {join_truncated(names)}; {reason}", names
