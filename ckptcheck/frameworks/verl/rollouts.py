"""Converts verl's batches: a DataProto saved by `save_to_disk` or by torch.save, or its TensorDict or dictionary of tensors.

`prompts` [B, P] are padded on the left, `responses` [B, R] on the right; `attention_mask` [B, P + R] is 0 for padding.
`rollout_log_probs` are the engine's, `old_log_probs` the trainer's, `ref_log_prob` the reference model's, all [B, R];
`response_mask` and `advantages` [B, R]; `routed_experts` [B, P + R, layers, k] for its router replay. `meta_info` may hold
`global_steps`, which is 1 at the first step, and the `temperature` by which the trainer divides. Sources: verl 0.9.1
verl/protocol.py (`__getstate__`, both of its serializations), verl/utils/debug/metrics.py. In bypass mode verl copies
`rollout_log_probs` to `old_log_probs`, which hides every gap (PAR014 reports it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.torch_file import leaf, read_torch_file_bytes
from ckptcheck.checkpoint.unpickle import ObjectStub
from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat, TextDump
from ckptcheck.rollouts.convert.reading import as_float, as_int, read_each
from ckptcheck.rollouts.metadata import Metadata, SamplingInfo, ScorerInfo
from ckptcheck.text.formatting import format_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROTO = "verl.protocol.DataProto"


def is_batch(content: Any) -> bool:
    """Whether a pickle holds a batch."""
    if isinstance(content, ObjectStub):
        return content.name == PROTO
    return isinstance(content, dict) and "responses" in content and bool({"prompts", "input_ids"} & content.keys())


def is_text_dump(content: Any) -> bool:
    """Whether these lines are a dump in `trainer.rollout_data_dir`: texts and scores, without tokens."""
    first = next((line for line in content if isinstance(line, dict)), {})
    return {"input", "output", "score"} <= first.keys() and "token_ids" not in first


def batch(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert a batch and remove the padding."""
    import numpy as np

    tensors, info = _split_content(content)
    responses, attention = _require_table(tensors, "responses"), _require_table(tensors, "attention_mask").astype(bool)
    if "prompts" not in tensors:
        ids = _require_table(tensors, "input_ids")
    else:
        prompts = _require_table(tensors, "prompts")
        if len(prompts) != len(responses):
            raise UnusableSequence(f"there are {len(prompts):,} prompts and {len(responses):,} responses")
        ids = np.concatenate([prompts, responses], 1)
    if ids.shape != attention.shape:
        raise UnusableSequence(
            f"attention_mask is {format_shape(attention.shape)}, and prompts and responses are {format_shape(ids.shape)}"
        )
    before = ids.shape[1] - responses.shape[1]
    if before < 0:
        raise UnusableSequence("responses are longer than the sequences that end in them")

    # the second is the first less a KL penalty
    scores = next((name for name in ("token_level_scores", "token_level_rewards") if name in tensors), None)

    def sequence(row: int) -> Rollout:
        is_token = attention[row]
        is_response = is_token[before:]

        def response_part(name: str) -> Any:
            return tensors[name][row][is_response] if name in tensors else None

        return Rollout(
            tokens=ids[row][is_token],
            prompt=int(is_token[:before].sum()),
            engine=response_part("rollout_log_probs"),
            trainer=response_part("old_log_probs"),
            reference=response_part("ref_log_prob"),
            mask=_to_booleans(response_part("response_mask")),
            engine_routing=_select_routing(tensors.get("routed_experts"), row, is_token),
            advantages=response_part("advantages"),
            reward=None if scores is None else float(tensors[scores][row].sum()),
        )

    return read_each(sequence, range(len(ids))), _build_metadata(info, "old_log_probs" in tensors)


def _require_table(tensors: Mapping[str, Any], name: str) -> NDArray[Any]:
    import numpy as np

    table = tensors[name] if isinstance(tensors, Mapping) else None
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.dtype.kind not in "iub":
        raise UnusableSequence(f"{name} is no table of whole numbers [sequences, tokens]")
    return table


def _select_routing(routing: Any, row: int, is_token: NDArray[Any]) -> Any:
    """Return the experts of a sequence's tokens, [tokens - 1, layers, k]; None if the batch has none.

    verl pads `routed_experts` [B, P + R, layers, k] with zeros, the row of the last token included, which no engine computed.
    """
    import numpy as np

    if (
        not isinstance(routing, np.ndarray)
        or routing.ndim != 4
        or routing.shape[1] != len(is_token)
        or len(routing) <= row
    ):
        return None
    return routing[row][is_token][:-1]


def _to_booleans(mask: Any) -> Any:
    return None if mask is None else mask != 0


def _build_metadata(info: Mapping[str, Any], has_trainer: bool) -> Metadata:
    temperature = as_float(info.get("temperature"))
    steps = as_int(info.get("global_steps"))
    return Metadata(
        step=None if steps is None else max(0, steps - 1),
        trainer=ScorerInfo("verl", temperature=temperature) if has_trainer else None,
        sampling=SamplingInfo(temperature=temperature),
        source="verl DataProto",
    )


def _split_content(content: Any) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the tensors of a batch as arrays, and its meta_info."""
    if not isinstance(content, ObjectStub):
        return content, {}
    tensors, _, info = content.state
    if isinstance(tensors, bytes):
        tensors = read_torch_file_bytes(tensors)
    elif isinstance(tensors, tuple):
        # VERL_DATAPROTO_SERIALIZATION_METHOD=numpy: batch size, device, name → dtype, shape, bytes
        tensors = {name: leaf(bytes(raw), kind, shape) for name, (kind, shape, raw) in tensors[2].items()}
    return tensors, info if isinstance(info, dict) else {}


FORMATS = (RolloutFormat("verl", is_batch, batch),)
TEXT_DUMPS = (TextDump("verl", is_text_dump, "save the batch: batch.save_to_disk(PATH)"),)
