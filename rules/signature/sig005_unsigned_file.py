"""A file of the model is not covered by the signature.

## What it checks
- No file lies beside the signed ones that the signature does not cover. Files in hidden folders, such as `.cache` of a download,
  are a warning: nothing loads them.
- The signer left out no file that a loader reads: weights, code, configuration.

## Why it matters
A file that was added after signing is loaded like the others: weights that a glob finds, code that `trust_remote_code` runs, a
tokenizer file that takes precedence. `model_signing verify` refuses such files too, unless told to ignore them. A file that the
signer left out may be exchanged by anybody, and `model_signing verify` still says that the signature succeeded.

## How to fix
Remove the file, or sign again with it.

## When it can be wrong
You added a note of your own to a folder that somebody else signed. `--ignore-unsigned-files` leaves such files out, as it does in
`model_signing verify`.

## Seen in
sigstore/model-transparency: `Extra files found in model`, and `ignore_paths` in the signed statement
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.signature_check import SignatureCheck, list_tensors
from ckptcheck.text.formatting import count, join_truncated


@rule("SIG005", "unsigned-file", severity="error", on="signature")
def check(signature: SignatureCheck) -> Iterator[Problem]:
    signature.require_this_model()
    hidden = [file for file in signature.files.unsigned if file.startswith(".") and "/" in file]
    added = [file for file in signature.files.unsigned if file not in hidden]
    for files in (added, hidden):
        if files:
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
    if left_out := signature.left_out:
        yield Problem(
            f"the signer left out {count(len(left_out), 'file')} that loaders read, so anybody can exchange "
            f"{'it' if len(left_out) == 1 else 'them'}: {join_truncated(left_out)}",
            left_out[0],
            hint="ask the signer to sign the whole folder",
            names=tuple(left_out),
        )
