"""The files are not those that were signed: one changed, is gone, or was added.

## What it checks
- Every file that the signature covers is there, and has the bytes that were signed. Where `ckptcheck sign` signed, its manifest
  is among the signed files: a finding names the tensors whose values, dtype, shape, name, file or place changed, and says where a
  tensor holds what another one held. Of a signature by ranges of bytes (`model_signing` with shards), it names the tensors in
  these ranges.
- No file lies beside the signed ones that the signature does not cover. Files in hidden folders, such as `.cache` of a download,
  are a warning: nothing loads them.
- The signer left out no file that a loader reads: weights, code, configuration.
- If the signature covers two files or more and none of them is here as it was signed, or if (nearly) no tensor of the signed
  manifest is, then one finding says that the signature is of another model.

## Why it matters
These are not the weights, or not the settings, that the signer released. A loader takes a file that was added like the others:
weights that a glob finds, code that `trust_remote_code` runs. `model_signing verify` refuses such a folder, and names the file. A
file that the signer left out may be exchanged by anybody, and `model_signing verify` still says that the signature succeeded.

## How to fix
Fetch the files again, and remove what does not belong to the model. If the change is yours and intended, sign again.

## When it can be wrong
- A tool that only rewrites a header or a config, such as a new transformers on `save_pretrained`, changes files without changing
  weights. The finding says so, but the signature is broken. The same holds for a README that you removed.
- You added a note of your own to a folder that somebody else signed. `--ignore-unsigned-files` leaves such files out, as the same
  option of `model_signing verify` does.
- You rewrote every file: a cast of a whole model is another model to its signer too.

## Seen in
sigstore/model-transparency: `Hash mismatch for` names the file, and no tensor; `Missing files in model`; `Extra files found in
model`; `ignore_paths` in the signed statement
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.changed_tensors import find_changes
from ckptcheck.compare.signatures.signature_check import SignatureCheck, list_tensors
from ckptcheck.text.formatting import count, join_truncated

FETCH_CHANGED = "fetch the file again from whoever signed it, or sign again if the change is intended"
FETCH_MISSING = "fetch it again, or sign again if it was removed on purpose"


@rule("SIG002", "altered-files", severity="error", on="signature")
def check(signature: SignatureCheck) -> Iterator[Problem]:
    signature.require_signer()
    if signature.other_model:
        hint = "fetch the signature that belongs to these weights"
        yield Problem(signature.other_model, file=signature.signature.name, hint=hint)
        return
    yield from _list_changed(signature)
    yield from _list_missing(signature)
    yield from _list_unsigned(signature)
    if left_out := signature.left_out:
        yield Problem(
            f"the signer left out {count(len(left_out), 'file')} that loaders read, so anybody can exchange "
            f"{'it' if len(left_out) == 1 else 'them'}: {join_truncated(left_out)}",
            left_out[0],
            hint="ask the signer to sign the whole folder",
            names=tuple(left_out),
        )


def _list_changed(signature: SignatureCheck) -> Iterator[Problem]:
    others = []
    for file in dict.fromkeys(item.file for item in signature.files.changed):
        what, names = _describe_change(signature, file)
        if what:
            text = f"it is not the file that was signed: {what}"
            yield Problem(text, file, min(names, default=None), FETCH_CHANGED, names=names)
        else:
            others.append(file)
    if others:
        number = f"{count(len(others), 'file is', 'files are')} not as signed"
        yield Problem(f"{number}: {join_truncated(others)}", others[0], hint=FETCH_CHANGED, names=tuple(others))


def _describe_change(signature: SignatureCheck, file: str) -> tuple[str, tuple[str, ...]]:
    """Say which tensors of a file changed, with their names; "" where it holds none that is known."""
    if signature.verification is not None:
        changes = find_changes(signature.verification, file)
        return changes.text, changes.names
    ranges = [(item.begin, item.end) for item in signature.files.changed if item.file == file]
    names = tuple(list_tensors(signature, file, ranges))
    if not names:
        return "", ()
    if any(end is not None for _, end in ranges):
        return f"what changed lies in {join_truncated(names)}", names
    reason = signature.unnamed or "the signature covers no manifest that says which of them changed"
    return f"it holds {join_truncated(names)}; {reason}", names


def _list_missing(signature: SignatureCheck) -> Iterator[Problem]:
    others = []
    for file in signature.files.missing:
        changes = find_changes(signature.verification, file) if signature.verification is not None else None
        if changes is not None and changes.number:
            text = f"it was signed and is not there: {changes.text}"
            yield Problem(text, file, min(changes.names, default=None), FETCH_MISSING, names=changes.names)
        else:
            others.append(file)
    if others:
        number = (
            f"{count(len(others), 'file was', 'files were')} signed and {'is' if len(others) == 1 else 'are'} not there"
        )
        yield Problem(f"{number}: {join_truncated(others)}", others[0], hint=FETCH_MISSING, names=tuple(others))


def _list_unsigned(signature: SignatureCheck) -> Iterator[Problem]:
    hidden = [file for file in signature.files.unsigned if file.startswith(".") and "/" in file]
    added = [file for file in signature.files.unsigned if file not in hidden]
    for files in filter(None, (added, hidden)):
        tensors = [name for file in files for name in list_tensors(signature, file)]
        held = f"; {'it holds' if len(files) == 1 else 'they hold'} {join_truncated(tensors)}" if tensors else ""
        yield Problem(
            f"the signature does not cover {count(len(files), 'file')}: {join_truncated(files)}{held}",
            files[0],
            min(tensors, default=None),
            "remove what does not belong to the model, or sign again",
            severity="warning" if files is hidden else None,
            names=tuple(files),
        )
