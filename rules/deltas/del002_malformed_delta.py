"""A delta is torn: its index, its files and their headers do not fit together.

## What it checks
- The index can be read and names version and base_version; every file that it names is there, and holds what it says.
- No file holds a tensor that the index does not list, and no two files hold the same one.
- Every header can be read and describes bytes that are in the file. A change is stored as U8.
- The entries of a flush of verl lie within its positions and values, in the dtype of the values.

## Why it matters
SGLang applies every safetensors file in the folder, listed or not; ModelExpress goes by the index. With a torn folder they apply
different deltas. A change of xor that lies in two files undoes itself.

## How to fix
Publish the delta again. Move the version's pointer only after every file is written.

## When it can be wrong
Other safetensors files lie in the folder on purpose: no writer known does that.

## Seen in
radixark/miles miles/backends/megatron_utils/update_weight/update_weight_from_distributed/delta.py (`_drop_duplicate_names`:
a tensor published by two pipeline stages), modal-projects/stitch src/stitch/publish.py (`incomplete source version`)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.deltas.delta import MALFORMED
from ckptcheck.text.formatting import count


@rule("DEL002", "malformed-delta", severity="error", on="deltas")
def check(chains: Sequence[DeltaChain]) -> Iterator[Problem]:
    for chain in chains:
        for delta in chain.deltas:
            defects = [defect for defect in delta.defects if defect.kind == MALFORMED]
            if defects:
                more = f" ({count(len(defects) - 1, 'more such place')} in this delta)" if len(defects) > 1 else ""
                yield Problem(
                    f"{delta.name}: {defects[0].text}{more}",
                    key=defects[0].key,
                    names=tuple(defect.key for defect in defects if defect.key is not None),
                    hint="publish the delta again",
                )
