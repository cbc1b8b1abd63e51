"""The file of a rank is missing from a legacy checkpoint.

## What it checks
There is an `mp_rank` folder with a `model_optim_rng.pt` for every tensor, pipeline and expert rank that the arguments give.
Where tensor parallelism does not cut the experts, each rank number has to occur once, not every combination.

## Why it matters
A legacy checkpoint loads on exactly its own grid: one rank that finds no file stops the job.

## How to fix
Copy the folders of all nodes into one.

## When it can be wrong
A checkpoint that is only to be converted may lack ranks whose weights are copies. `--ignore MEG024` silences it.

## Seen in
NVIDIA/Megatron-LM#1530 (files that only one node has)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.legacy import FILES, Place, folder_name, integer, place_of
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import count, few


@rule(
    "MEG024",
    "missing-rank",
    severity="error",
    on="megatron",
    when=lambda run: run.form == "legacy" and (bool(run.args) or not run.ranks),
)
def check(run: Megatron) -> Iterator[Problem]:
    for folder in run.rank_folders:
        if not any(f"{folder}/{name}" in run.files for name in FILES):
            yield Problem(
                "the folder of this rank holds no model_optim_rng.pt", file=folder, hint="copy it from that rank's node"
            )
    tp, pp, ep = (integer(run.args, f"{name}_model_parallel_size") for name in ("tensor", "pipeline", "expert"))
    places = {place_of(rank, run.args) for rank in run.ranks}
    if integer(run.args, "expert_tensor_parallel_size", tp) == tp or ep == 1:
        due = (
            {Place(t, p, e) for t in range(tp) for p in range(pp) for e in range(ep)}
            if tp * pp * ep <= 1 << 16
            else set()
        )
        missing = sorted(folder_name(place, pp, ep) for place in due - places)
    else:
        sizes = {"tp": tp, "pp": pp, "ep": ep}
        missing = [
            f"{axis} rank {number}"
            for axis, total in sizes.items()
            for number in sorted(set(range(total)) - {getattr(place, axis) for place in places})
        ]
    missing = [name for name in missing if run.file(name) not in run.rank_folders]
    if missing:
        yield Problem(
            f"the arguments give {tp} × {pp} × {ep} ranks (tensor × pipeline × expert), "
            f"and {count(len(missing), 'of them is', 'of them are')} missing: {few(missing)}",
            file=run.place,
            hint="copy the folders of all nodes into one",
        )
