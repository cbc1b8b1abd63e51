"""verl's batches: a DataProto saved by `save_to_disk`, by torch.save, or its TensorDict or dictionary of tensors.

`prompts` [B, P] are padded on the left, `responses` [B, R] on the right; `attention_mask` [B, P + R] tells what is padding.
`rollout_log_probs` are the engine's, `old_log_probs` the trainer's, `ref_log_prob` the reference model's, all [B, R];
`response_mask` [B, R]. `meta_info` may hold `global_steps` and the `temperature` by which the trainer divides.
Sources: verl 0.9.1 verl/protocol.py (`__getstate__`, both of its serializations), verl/utils/debug/metrics.py.
In bypass mode verl copies `rollout_log_probs` to `old_log_probs`: there is no gap then to be seen (PAR014 says so).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.torch_file import leaf, read_torch_bytes
from ckptcheck.checkpoint.unpickle import Record
from ckptcheck.phrase import shape
from ckptcheck.rollouts.build import Misfit, Rollout
from ckptcheck.rollouts.convert.reading import each, number, whole
from ckptcheck.rollouts.metadata import Metadata, Sampling, Side

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROTO = "verl.protocol.DataProto"


def is_batch(content: Any) -> bool:
    """Whether a pickle holds a batch."""
    if isinstance(content, Record):
        return content.name == PROTO
    return isinstance(content, dict) and "responses" in content and bool({"prompts", "input_ids"} & content.keys())


def is_text_dump(content: Any) -> bool:
    """Whether these lines are what `trainer.rollout_data_dir` gets: texts and scores, without tokens."""
    first = next((line for line in content if isinstance(line, dict)), {})
    return {"input", "output", "score"} <= first.keys() and "token_ids" not in first


def batch(content: Any) -> tuple[list[Rollout | Misfit], Metadata]:
    """Take over a batch; padding is cut off."""
    import numpy as np

    tensors, info = _parts(content)
    responses, attention = _table(tensors, "responses"), _table(tensors, "attention_mask").astype(bool)
    if "prompts" not in tensors:
        ids = _table(tensors, "input_ids")
    else:
        prompts = _table(tensors, "prompts")
        if len(prompts) != len(responses):
            raise Misfit(f"there are {len(prompts):,} prompts and {len(responses):,} responses")
        ids = np.concatenate([prompts, responses], 1)
    if ids.shape != attention.shape:
        raise Misfit(f"attention_mask is {shape(attention.shape)}, and prompts and responses are {shape(ids.shape)}")
    before = ids.shape[1] - responses.shape[1]
    if before < 0:
        raise Misfit("responses are longer than the sequences that end in them")

    def sequence(row: int) -> Rollout:
        there = attention[row]
        answered = there[before:]

        def of(name: str) -> Any:
            return tensors[name][row][answered] if name in tensors else None

        return Rollout(
            tokens=ids[row][there],
            prompt=int(there[:before].sum()),
            engine=of("rollout_log_probs"),
            trainer=of("old_log_probs"),
            reference=of("ref_log_prob"),
            mask=_truths(of("response_mask")),
            reward=float(tensors["token_level_scores"][row].sum()) if "token_level_scores" in tensors else None,
        )

    return each(sequence, range(len(ids))), _about(info, "old_log_probs" in tensors)


def _table(tensors: Mapping[str, Any], name: str) -> NDArray[Any]:
    import numpy as np

    found = tensors[name] if isinstance(tensors, Mapping) else None
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.dtype.kind not in "iub":
        raise Misfit(f"{name} is no table of whole numbers [sequences, tokens]")
    return found


def _truths(mask: Any) -> Any:
    return None if mask is None else mask != 0


def _about(info: Mapping[str, Any], trained: bool) -> Metadata:
    known = number(info.get("temperature"))
    return Metadata(
        step=whole(info.get("global_steps")),
        trainer=Side("verl", temperature=known) if trained else None,
        sampling=Sampling(temperature=known),
        source="verl DataProto",
    )


def _parts(content: Any) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the tensors, as arrays, and meta_info."""
    if not isinstance(content, Record):
        return content, {}
    held, _, info = content.state
    if isinstance(held, bytes):
        held = read_torch_bytes(held)
    elif isinstance(
        held, tuple
    ):  # VERL_DATAPROTO_SERIALIZATION_METHOD=numpy: batch size, device, name → dtype, shape, bytes
        held = {name: leaf(bytes(raw), kind, shape) for name, (kind, shape, raw) in held[2].items()}
    return held, info if isinstance(info, dict) else {}
