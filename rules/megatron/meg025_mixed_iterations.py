"""Parts of a checkpoint are of different saves.

## What it checks
The iteration that common.pt, or the file of every legacy rank, names is the same on all ranks, and the number of the folder
(`iter_0000100`). All legacy ranks have the same arguments, as far as they describe the model and the grid of ranks.

## Why it matters
A model whose parts are of different ages loads, and answers almost sensibly. Megatron goes on from the iteration that the
file names, not from that of the folder: it reads the same data again and writes over later saves.

## How to fix
Copy the files of one iteration; the others are named in the message.

## When it can be wrong
A folder that was given another number on purpose. `--ignore MEG025` silences it.

## Seen in
KempnerInstitute/KempnerForge#102 (a save that did not end over an older one)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.tree import ITERATION
from ckptcheck.phrase import few

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
"""Arguments of the model and of the grid; others, such as the rank, are each rank's own."""


@rule("MEG025", "mixed-iterations", severity="error", on="megatron", when=lambda run: run.form != "empty")
def check(run: Megatron) -> Iterator[Problem]:
    by_iteration: dict[int, list[str]] = {}
    for rank in run.ranks:
        if rank.iteration is not None:
            by_iteration.setdefault(rank.iteration, []).append(rank.folder.rpartition("/")[2])
    if len(by_iteration) > 1:
        said = "; ".join(f"{number} in {few(folders)}" for number, folders in sorted(by_iteration.items()))
        yield Problem(f"its ranks are of iterations {said}", file=run.place, hint="copy the files of one iteration")
    common = (run.common or {}).get("iteration")
    own = next(iter(by_iteration)) if len(by_iteration) == 1 else common if type(common) is int else None
    folder = run.iteration or run.target.rstrip("/").rpartition("/")[2]
    if own is not None and ITERATION.fullmatch(folder) and int(folder[5:]) != own:
        yield Problem(
            f"the folder is called {folder}, and what is in it was saved at iteration {own}: Megatron goes on from {own}",
            file=run.place if run.ranks else run.file("common.pt"),
            hint="copy the files of one iteration, or call the folder by its own number",
        )
    for name in SAME if run.ranks else ():
        values: dict[str, list[str]] = {}
        for rank in run.ranks:
            if name in rank.arguments:
                values.setdefault(repr(rank.arguments[name]), []).append(rank.folder.rpartition("/")[2])
        if len(values) > 1:
            said = "; ".join(f"{value} in {few(folders)}" for value, folders in sorted(values.items()))
            yield Problem(f"its ranks disagree about {name}: {said}", file=run.place, hint="copy the files of one save")
