"""The file of a rank is missing from a legacy checkpoint.

## What it checks
- There is an `mp_rank` folder with a `model_optim_rng.pt` for every tensor, pipeline and expert rank that the arguments give.
- Where tensor parallelism does not split the experts, each rank number occurs at least once; not every combination has to
  exist.

## Why it matters
A legacy checkpoint loads only on its own grid of ranks: a single rank without a file stops the job.

## How to fix
Copy the folders of all nodes into one.

## When it can be wrong
A checkpoint that will only be converted may lack ranks whose weights are copies. `--ignore MEG024` silences it.

## Seen in
NVIDIA/Megatron-LM#1530 (files that only one node has)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.legacy import FILES
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import count, join_truncated

HINT = "copy it from that rank's node; if it is not there either, the save did not finish: use an earlier iteration"


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
            yield Problem("the folder of this rank holds no model_optim_rng.pt", file=folder, hint=HINT)
    (tp, pp, ep), missing = run.missing_ranks
    if missing:
        yield Problem(
            f"the arguments give {tp} × {pp} × {ep} ranks (tensor × pipeline × expert), "
            f"but {count(len(missing), 'of them is', 'of them are')} missing: {join_truncated(missing)}",
            file=run.finding_file,
            hint="copy the folders of all nodes into one; if no node has them, the save did not finish: use an earlier iteration",
        )
