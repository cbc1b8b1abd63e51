"""A file of the Hugging Face cache does not have the hash in its name.

## What it checks
With `--set verify-blobs=on`: every file of a cached snapshot that links to a blob named by a SHA-256 has that SHA-256. This needs
no network, but hashes every byte slowly, so it is off by default.

## Why it matters
A corrupt download of the right size passes every other check, and every user of the machine loads it.

## How to fix
Delete the blob and fetch the file again.

## When it can be wrong
A file that was edited in place within the cache is changed and not corrupt; every user of the cache has the change too. Only
files that the Hub stores by SHA-256 can be checked: configs and the tokenizer's small files have another hash. A file that
was corrupt before the upload has the right SHA-256.

## Seen in
paiml/aprender#2337
"""

import hashlib
import os
from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.source import blob_digests


@rule(
    "ST024",
    "corrupt-blob",
    severity="error",
    when=lambda ckpt: ckpt.options.verify_blobs or bool(blob_digests(ckpt.source)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not ckpt.options.verify_blobs:
        raise Skip("needs --set verify-blobs=on")
    if not (blobs := blob_digests(ckpt.source)):
        raise Skip("this is no snapshot of the Hugging Face cache: no file says which hash it should have")
    for name, digest in blobs.items():
        state, at = hashlib.sha256(), 0
        while part := ckpt.source.read(name, at, 1 << 22):
            state.update(part)
            at += len(part)
        if state.hexdigest() != digest:
            yield Problem(
                f"its SHA-256 is {state.hexdigest()[:12]}…, but the cache names it {digest[:12]}…: it is corrupt",
                file=name,
                hint=f"delete the blob that it links to and fetch it again: {os.path.join('blobs', digest)}",
            )
