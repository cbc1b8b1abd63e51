"""A web page or an error message of a web server stands in the place of a file.

## What it checks
No file begins as HTML or XML does, or with what the Hub and S3 answer instead of a file: `Entry not found`, `Invalid
username or password`, `Access to model … is restricted`, `<Error>`.

## Why it matters
`wget`, `curl -L` and browsers save whatever comes: a login page, the page that shows the file, a refusal. safetensors
then says `header too large`, a JSON parser complains about line 1, and neither names the cause.

## How to fix
Use `hf download`, or the `resolve` address instead of the `blob` one, with a token where the model is gated.

## When it can be wrong
A file that is meant to be a page, under a name of data: a license in `.txt` that was saved as HTML, a template in
`.jinja` that begins with `<html`. No loader of weights minds those; `--ignore ST015`. An answer in other words, such
as JSON with an `error`, is not recognised here; for a shard it is ST008 or ST010.

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
