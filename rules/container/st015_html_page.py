"""A file is a web page or an error message of a web server instead of its content.

## What it checks
No file begins like HTML or XML, or with an error response of the Hub or S3: `Entry not found`, `Invalid username or
password`, `Access to model … is restricted`, `<Error>`.

## Why it matters
`wget`, `curl -L` and browsers save whatever the server sends: a login page, the page that displays the file, a refusal.
safetensors then reports `header too large`, a JSON parser complains about line 1, and neither names the cause.

## How to fix
Use `hf download`, or the `resolve` address instead of the `blob` one, with a token if the model is gated.

## When it can be wrong
A file may be HTML on purpose, under a name of data: a license in `.txt` that was saved as HTML, a template in `.jinja` that
begins with `<html`. No loader of weights reads those: use `--ignore ST015`. The rule does not recognize other responses, such
as JSON with an `error`; for a shard, ST008 or ST010 reports them.

## Seen in
huggingface/diffusers#6713
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("ST015", "html-page", severity="error")
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("html-page"):
        yield replace(problem, hint="fetch the file with hf download, with a token where the model is gated")
