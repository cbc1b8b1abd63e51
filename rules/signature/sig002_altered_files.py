"""The files are not those that were signed: one changed, is gone, or was added.

## What it checks
- Every file that the signature covers is there, and has the bytes that were signed. Where `ckptcheck sign` signed, its manifest
  is among the signed files: MAN001 and MAN002 then name the tensors of these files whose values, dtype, shape, name or file
  changed.
- No file lies beside the signed ones that the signature does not cover. Files in hidden folders, such as `.cache` of a download,
  are a warning: nothing loads them.
- The signer left out no file that a loader reads: weights, code, configuration.

## Why it matters
These are not the weights, or not the settings, that the signer released. A loader takes a file that was added like the others:
weights that a glob finds, code that `trust_remote_code` runs. `model_signing verify` refuses such a folder, and names the file. A
file that the signer left out may be exchanged by anybody, and `model_signing verify` still says that the signature succeeded.

## How to fix
Fetch the files again, and remove what does not belong to the model. If the change is yours and intended, sign again.

## When it can be wrong
- A tool that only rewrites a header or a config, such as a new transformers on `save_pretrained`, changes files without changing
  weights: then no tensor is named, but the signature is broken. The same holds for a README that you removed.
- You added a note of your own to a folder that somebody else signed. `--ignore-unsigned-files` leaves such files out, as the same
  option of `model_signing verify` does.

## Seen in
sigstore/model-transparency: `Hash mismatch for` names the file, and no tensor; `Missing files in model`; `Extra files found in
model`; `ignore_paths` in the signed statement
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.signatures.signature_check import SignatureCheck
from ckptcheck.text.formatting import count, join_truncated

UNSIGNED = "remove what does not belong to the model, or sign again"


@rule("SIG002", "altered-files", severity="error", on="signature")
def check(signature: SignatureCheck) -> Iterator[Problem]:
    signature.require_signer()
    state = signature.files
    hidden = tuple(file for file in state.unsigned if file.startswith(".") and "/" in file)
    added = tuple(file for file in state.unsigned if file not in hidden)
    number, them = count(len(state.left_out), "file"), "it" if len(state.left_out) == 1 else "them"
    for files, text, hint in (
        (
            state.changed,
            f"{count(len(state.changed), 'file is', 'files are')} not as signed",
            "fetch it again from whoever signed it, or sign again if the change is intended",
        ),
        (
            state.missing,
            f"{count(len(state.missing), 'file that was signed is', 'files that were signed are')} not there",
            "fetch it again, or sign again if it was removed on purpose",
        ),
        (added, f"the signature does not cover {count(len(added), 'file')}", UNSIGNED),
        (hidden, f"the signature does not cover {count(len(hidden), 'file')}", UNSIGNED),
        (
            state.left_out,
            f"the signer left out {number} that loaders read, so anybody can exchange {them}",
            "ask the signer to sign the whole folder",
        ),
    ):
        if files:
            yield Problem(
                f"{text}: {join_truncated(files)}",
                files[0],
                hint=hint,
                severity="warning" if files is hidden else None,
                names=files,
            )
