"""Converts ROLL's batches: a pickled DataProto, or a dictionary of its tensors saved by torch.save.

`input_ids`, `attention_mask` and `response_mask` are [B, S], padded on the right; `infer_logprobs` are the engine's,
`old_log_probs` the trainer's, `ref_log_probs` the reference model's, and `advantages`, all [B, S - 1]: column t is about token t +
1. `old_log_probs` are all 0 where `enable_old_logprobs_recompute` is off. Sources: alibaba/ROLL
roll/distributed/scheduler/protocol.py (`__getstate__`), roll/utils/functionals.py (`postprocess_generate`) and
roll/pipeline/rlvr/rlvr_pipeline.py at 8eb27cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.torch_file import read_torch_file_bytes
from ckptcheck.checkpoint.unpickle import ObjectStub
from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat, TextDump
from ckptcheck.rollouts.convert.reading import as_int, read_each
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo
from ckptcheck.text.formatting import format_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROTO = "roll.distributed.scheduler.protocol.DataProto"
UNSCORED = "old_log_probs are all 0, as ROLL writes them without enable_old_logprobs_recompute"
LOGPROBS = ("infer_logprobs", "old_log_probs", "ref_log_probs")


def is_batch(content: Any) -> bool:
    """Whether a pickle holds a batch."""
    if isinstance(content, ObjectStub):
        return content.name == PROTO
    return isinstance(content, dict) and {"input_ids", "response_mask", "infer_logprobs"} <= content.keys()


def is_text_dump(content: Any) -> bool:
    """Whether these lines are a dump in `rollout_dump_dir`: texts and scores, without tokens."""
    first = next((line for line in content if isinstance(line, dict)), {})
    return {"responses", "scores", "global_step"} <= first.keys()


def batch(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert a batch and remove the padding."""
    import numpy as np

    tensors, info = _split_content(content)
    ids, attention, mask = (_require_table(tensors, name) for name in ("input_ids", "attention_mask", "response_mask"))
    for name, table in (("attention_mask", attention), ("response_mask", mask)):
        if table.shape != ids.shape:
            raise UnusableSequence(
                f"{name} is {format_shape(table.shape)}, and input_ids are {format_shape(ids.shape)}"
            )
    known = {name: tensors[name] for name in LOGPROBS if name in tensors}
    for name, logprobs in known.items():
        if not isinstance(logprobs, np.ndarray) or logprobs.shape != (len(ids), ids.shape[1] - 1):
            shape = format_shape(np.shape(logprobs))
            raise UnusableSequence(f"{name} is {shape}, and a logprob of every token but the first is expected")
    is_unscored = "old_log_probs" in known and not np.any(known["old_log_probs"])
    if is_unscored:
        del known["old_log_probs"]
    advantages = tensors.get("advantages")
    if not isinstance(advantages, np.ndarray) or advantages.shape != (len(ids), ids.shape[1] - 1):
        advantages = None
    scores = next((tensors[name] for name in ("scores", "response_level_rewards") if name in tensors), None)

    def sequence(row: int) -> Rollout:
        end = int(attention[row].sum())
        trained = mask[row][:end] != 0
        engine, trainer, reference = (
            known[name][row][: max(0, end - 1)] if name in known else None for name in LOGPROBS
        )
        return Rollout(
            tokens=ids[row][:end],
            prompt=int(trained.argmax()) if trained.any() else end,
            engine=engine,
            trainer=trainer,
            reference=reference,
            mask=trained,
            advantages=None if advantages is None else advantages[row][: max(0, end - 1)],
            reward=float(scores[row]) if scores is not None and np.ndim(scores) == 1 else None,
        )

    metadata = Metadata(
        step=as_int(info.get("global_step")),
        trainer=ScorerInfo("roll") if "old_log_probs" in known else None,
        source="ROLL DataProto",
        unscored={"trainer": UNSCORED} if is_unscored else {},
    )
    return read_each(sequence, range(len(ids))), metadata


def _require_table(tensors: Mapping[str, Any], name: str) -> NDArray[Any]:
    import numpy as np

    table = tensors[name] if isinstance(tensors, Mapping) else None
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.dtype.kind not in "iub":
        raise UnusableSequence(f"{name} is no table of whole numbers [sequences, tokens]")
    return table


def _split_content(content: Any) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the tensors of a batch as arrays, and its meta_info."""
    if not isinstance(content, ObjectStub):
        return content, {}
    buffer, _, remote, info = content.state
    if remote is not None:
        raise UnusableSequence("its tensors are in Ray's store, and not in the file")
    tensors = read_torch_file_bytes(buffer.state[0])
    return tensors, info if isinstance(info, dict) else {}


FORMATS = (RolloutFormat("roll", is_batch, batch),)
TEXT_DUMPS = (TextDump("ROLL", is_text_dump, "save the batch: torch.save(dict(batch.batch.items()), PATH)"),)
