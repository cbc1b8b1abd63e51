"""Parts of a checkpoint come from different saves.

## What it checks
- The iteration that common.pt, or the file of every legacy rank, names is the same on all ranks and equals the number of the
  folder (`iter_0000100`).
- All legacy ranks have the same arguments, as far as they describe the model and the grid of ranks.

## Why it matters
A model whose parts have different ages loads, and its answers look almost right. Megatron continues from the iteration that the
file names, not from that of the folder: it reads the same data again and overwrites later saves.

## How to fix
Copy the files of one iteration. The message names the others.

## When it can be wrong
A folder may be renumbered on purpose.

## Seen in
KempnerInstitute/KempnerForge#102 (a save that did not end over an older one); checkpoints put together from two saves
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.folders import ITERATION
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import join_truncated

SAME = [
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "moe_ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "num_experts",
    "padded_vocab_size",
    "swiglu",
    "normalization",
    "untie_embeddings_and_output_weights",
    "params_dtype",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size",
]
"""Arguments of the model and of the grid; others, such as the rank, differ between ranks."""


@rule("MEG025", "mixed-saves", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    by_iteration: dict[int, list[str]] = {}
    for rank in run.ranks:
        if rank.iteration is not None:
            by_iteration.setdefault(rank.iteration, []).append(rank.folder.rpartition("/")[2])
    if len(by_iteration) > 1:
        listed = "; ".join(f"{number} in {join_truncated(folders)}" for number, folders in sorted(by_iteration.items()))
        yield Problem(
            f"its ranks come from different iterations: {listed}",
            file=run.finding_file,
            hint="copy the files of one iteration",
        )
    common = (run.common_state or {}).get("iteration")
    own = next(iter(by_iteration)) if len(by_iteration) == 1 else common if type(common) is int else None
    folder = run.iteration or run.target.rstrip("/").rpartition("/")[2]
    if own is not None and ITERATION.fullmatch(folder) and int(folder[5:]) != own:
        yield Problem(
            f"the folder is called {folder}, but its content was saved at iteration {own}: Megatron continues from {own}",
            file=run.finding_file if run.ranks else run.file("common.pt"),
            hint="copy the files of one iteration, or rename the folder to that iteration",
        )
    for name in SAME if run.ranks else ():
        values: dict[str, list[str]] = {}
        for rank in run.ranks:
            if name in rank.arguments:
                values.setdefault(repr(rank.arguments[name]), []).append(rank.folder.rpartition("/")[2])
        if len(values) > 1:
            listed = "; ".join(f"{value} in {join_truncated(folders)}" for value, folders in sorted(values.items()))
            yield Problem(
                f"its ranks disagree about {name}: {listed}", file=run.finding_file, hint="copy the files of one save"
            )
