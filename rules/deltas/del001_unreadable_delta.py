"""A delta cannot be read: its format is unknown, or its index and files do not fit together.

## What it checks
- A delta is a folder whose index names a delta_encoding (slime, miles, ModelExpress, Stitch), or verl's flushes in safetensors
  files. Its encoding is xor or overwrite, its compression zstd, its checksums xxh3-128, blake3 or adler32; a flush is indices
  or dense.
- The index can be read and names version and base_version. Every file that it names is there, and holds what the index says. No
  file holds a tensor that the index does not list, and no two files hold the same one.
- Every header can be read and describes bytes that are in the file. A change is stored as U8.
- The entries of a flush of verl lie within its positions and values, in the dtype of the values.

## Why it matters
An engine refuses a format that it does not know (SGLang: `delta encoding … not supported`). SGLang applies every safetensors
file in the folder, listed or not; ModelExpress goes by the index: with a torn folder they apply different deltas. Where nothing
could be applied, nothing was compared, and the verdict is never clean.

## How to fix
Publish the delta again, in an encoding that the engine reads. Move the version's pointer only after every file is written.

## When it can be wrong
A format that ckptcheck does not know yet may be one that your engine reads.

## Seen in
THUDM/slime docker/patch/latest/sglang-pull_weights.patch (`NotImplementedError`), ai-dynamo/modelexpress
modelexpress_rl/inference/receiver.py (`unsupported compression format`), radixark/miles
miles/backends/megatron_utils/update_weight/update_weight_from_distributed/delta.py (`_drop_duplicate_names`: a tensor published
by two pipeline stages), modal-projects/stitch src/stitch/publish.py (`incomplete source version`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.delta import MALFORMED, UNKNOWN
from ckptcheck.text.formatting import count

KINDS = {
    UNKNOWN: (
        " is no delta that ckptcheck knows",
        "name the folder of a delta, or publish it in an encoding that is known here and to the engine",
    ),
    MALFORMED: ("", "fetch the delta again; if it is the same where it was published, publish it again"),
}
"""Kind of defect → the predicate of the message about the delta, and the hint."""


@rule("DEL001", "unreadable-delta", severity="error", on="deltas")
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for delta in (delta for chain in chains for delta in chain.deltas):
        for kind, (state, hint) in KINDS.items():
            defects = [defect for defect in delta.defects if defect.kind == kind]
            if defects:
                more = f" ({count(len(defects) - 1, 'more such place')} in this delta)" if len(defects) > 1 else ""
                yield Problem(
                    f"{delta.name}{state}: {defects[0].text}{more}",
                    key=defects[0].key,
                    names=tuple(defect.key for defect in defects if defect.key is not None),
                    hint=hint,
                )
