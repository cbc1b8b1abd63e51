"""A file that describes the checkpoint is missing or cannot be read.

## What it checks
- A folder with `.distcp` files also holds `.metadata`, the table of contents.
- `.metadata` is a pickle of torch.distributed.checkpoint's Metadata whose entries all describe a tensor or a run of bytes.
  ckptcheck reads it without executing anything.
- Where `metadata.json`, or objects sharded over a grid of ranks, show that megatron-core wrote the checkpoint, the folder holds
  `common.pt`.
- A folder with `common.pt`, or with objects that only megatron-core writes, holds `metadata.json`: a JSON object that names the
  backend of the sharded files (`sharded_backend`), which is `torch_dist` if there is a `.metadata`.
- `common.pt` and the `model_optim_rng.pt` of every rank are archives as torch.save writes them: uncompressed, with one complete
  `data.pkl`.

## Why it matters
- Neither Megatron nor torch.distributed.checkpoint can load anything without `.metadata`. One rank writes it last: a save that did
  not finish lacks it, and a full disk truncates it. The name begins with a dot, so `cp *` and some uploads omit it.
- `common.pt` holds what is equal on all ranks: the iteration, the arguments, the state of the scheduler. Without it Megatron stops
  with an AttributeError that does not name the file.
- Megatron recognizes a distributed checkpoint by `metadata.json`. Without it, Megatron treats the folder as a legacy checkpoint and
  looks for files that do not exist.
- Megatron stops at a file of torch.save that it cannot read. A broken copy or a full disk leaves such files.

## How to fix
Copy the file from the node of rank 0, where `.metadata`, `common.pt` and `metadata.json` lie, or use an earlier iteration. For
torch_dist, `metadata.json` is `{"sharded_backend": "torch_dist", "sharded_backend_version": 1}`.

## When it can be wrong
- A save in progress looks the same.
- ckptcheck cannot read the `.metadata` of another format, such as a storage plugin's.
- Files of torch before 1.6 are no archives: load and save them once.

## Seen in
huggingface/accelerate#3010, KempnerInstitute/KempnerForge#102; NVIDIA/Megatron-LM#1530 (files that only the first node has); faults
injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import has_sharded_objects
from ckptcheck.text.formatting import count

HINT = "copy it from the node of rank 0; if it is not there either, the save did not finish: use an earlier iteration"


@rule("MEG003", "broken-description", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    if run.form == "torch_dist":
        has_objects = run.contents is not None and has_sharded_objects(run.contents.objects)
        yield from _find_missing_metadata(run)
        yield from _find_unreadable_metadata(run)
        if run.description is not None or has_objects:
            yield from _find_missing_common(run)
        if run.file("common.pt") in run.files or has_objects:
            yield from _find_missing_description(run)
    yield from _find_unreadable_torch_files(run)


def _find_missing_metadata(run: Megatron) -> Iterator[Problem]:
    if run.contents is None and run.file(".metadata") not in run.files:
        files = [name for name in run.files if name.endswith(".distcp")]
        consequence = f", so no loader can find the tensors in {count(len(files), 'data file')}"
        yield Problem(
            "it is missing" + (consequence if files else ", and so is every data file"),
            file=run.file(".metadata"),
            hint=f"{HINT} (its name begins with a dot)",
            names=tuple(files),
        )


def _find_unreadable_metadata(run: Megatron) -> Iterator[Problem]:
    defects = run.contents.defects if run.contents is not None else ()
    for defect in defects[:1]:
        more = f" ({count(len(defects) - 1, 'more such entry', 'more such entries')})"
        text = defect.text + (more if len(defects) > 1 else "")
        yield Problem(
            text, file=run.file(".metadata"), key=defect.key, hint="copy it again, or use an earlier iteration"
        )


def _find_missing_common(run: Megatron) -> Iterator[Problem]:
    if run.file("common.pt") not in run.files:
        yield Problem(
            "it is missing: Megatron finds neither the iteration nor the arguments",
            file=run.file("common.pt"),
            hint=HINT,
        )


def _find_missing_description(run: Megatron) -> Iterator[Problem]:
    file = run.file("metadata.json")
    if file not in run.files:
        yield Problem(
            "it is missing, so Megatron treats the folder as a legacy checkpoint",
            file=file,
            hint=HINT,
        )
    elif run.description is not None and not isinstance(run.description.get("sharded_backend"), str):
        yield Problem("it names no sharded_backend", file=file, hint=HINT)
    elif (
        run.description is not None and run.contents is not None and run.description["sharded_backend"] != "torch_dist"
    ):
        yield Problem(
            f"it names the backend {clip(run.description['sharded_backend'])!r}, but the files are those of torch_dist: "
            "Megatron looks for other files",
            file=file,
            hint=HINT,
        )


def _find_unreadable_torch_files(run: Megatron) -> Iterator[Problem]:
    for file, defect in run.unreadable_files.items():
        yield Problem(defect.text, file=file, hint="copy it again, or use an earlier iteration")
