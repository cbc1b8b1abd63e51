"""Converts SkyRL's training batches: ``dumped_data/global_step_N_training_input.pkl`` (`trainer.dump_data_batch`).

The file is a pickled `TrainingInputBatch`. `sequences` and `attention_mask` are [B, S]; of its last R columns are `response_mask`,
`loss_mask`, `rollout_logprobs` (the engine's), `action_log_probs` (the trainer's) and `base_action_log_probs` (the reference
model's), `advantages`, all [B, R]. Since b059319 (2026-03-18) all padding is on the left, before it that of responses was on the
right. `rollout_expert_indices` are [B, S, layers, k]. The last `pad_size` rows of the metadata are copies that fill up the batch.
`action_log_probs` are None if the loss uses only the engine's logprobs. N = 1 is the first step. Since c7348d0 (2026-03-24) the
tensors are bytes in the state of the object; before, the pickle held them a second time. Source: NovaSky-AI/SkyRL
skyrl/backends/skyrl_train/training_batch.py, skyrl/train/dataset/preprocess.py and trainer.py at a956457, and skyrl 0.3.0 of PyPI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.torch_file import leaf, read_torch_file_bytes
from ckptcheck.checkpoint.unpickle import ObjectStub
from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat
from ckptcheck.rollouts.convert.padded import PaddedBatch, read_advantages, require_table, widen
from ckptcheck.rollouts.convert.reading import as_int
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo
from ckptcheck.text.formatting import format_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH = re.compile(r"skyrl(_train)?(\.\w+)*\.training_batch\.(_rebuild_tensor_batch|TrainingInputBatch)")
NAME = re.compile(r"global_step_([0-9]{1,15})_training_input\.pkl$")
SIDES = {"engine": "rollout_logprobs", "trainer": "action_log_probs", "reference": "base_action_log_probs"}
UNSCORED = "action_log_probs are None, as SkyRL leaves them where the loss needs the engine's logprobs alone"


def is_batch(content: Any) -> bool:
    """Whether a pickle holds a batch."""
    return isinstance(content, ObjectStub) and BATCH.fullmatch(content.name) is not None


def step_of_name(path: Path) -> int | None:
    """Return the step, counted from 0, in the name of a file; None without one."""
    match = NAME.search(path.name)
    return max(0, int(match[1]) - 1) if match else None


def batch(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert a batch and remove the padding."""
    tensors, info = _split_content(content)
    ids = require_table(tensors, "sequences")
    attention = require_table(tensors, "attention_mask", ids.shape)
    responses = require_table(tensors, "response_mask")
    shape, due = (len(ids), ids.shape[1]), (len(ids), responses.shape[1])
    if len(responses) != len(ids) or due[1] > shape[1]:
        raise UnusableSequence(
            f"response_mask is {format_shape(responses.shape)}, and sequences are {format_shape(ids.shape)}"
        )

    def of_tokens(name: str) -> NDArray[Any]:
        return widen(tensors, name, shape, due, shape[1] - due[1])

    known = {side: of_tokens(name) for side, name in SIDES.items() if tensors.get(name) is not None}
    is_response = of_tokens("response_mask") != 0
    rows = len(ids) - min(len(ids), max(0, as_int(info.get("pad_size")) or 0))
    experts = _read_routing(tensors, shape)
    advantages = read_advantages(tensors, shape, due, shape[1] - due[1])
    found = PaddedBatch(
        ids=ids[:rows],
        is_token=attention[:rows] != 0,
        is_response=is_response[:rows],
        mask=(of_tokens("loss_mask") != 0)[:rows] if "loss_mask" in tensors else is_response[:rows],
        logprobs={side: values[:rows] for side, values in known.items()},
        rewards=of_tokens("rewards").sum(1)[:rows] if tensors.get("rewards") is not None else None,
        advantages=None if advantages is None else advantages[:rows],
        others={} if experts is None else {"engine_routing": experts[:rows]},
    )
    metadata = Metadata(
        trainer=ScorerInfo("skyrl") if "trainer" in known else None,
        source="SkyRL TrainingInputBatch",
        unscored={} if "trainer" in known else {"trainer": UNSCORED},
    )
    return found.to_rollouts(), metadata


def _read_routing(tensors: Mapping[str, Any], shape: tuple[int, int]) -> NDArray[Any] | None:
    """Return the experts of each token, -1 if vLLM recorded none for it; None without any."""
    import numpy as np

    experts, unrouted = tensors.get("rollout_expert_indices"), tensors.get("router_padding_mask")
    if not isinstance(experts, np.ndarray) or experts.ndim != 4 or experts.shape[:2] != shape:
        return None
    if unrouted is None:
        # before the mask, only the last token was known to have no route of its own
        unrouted = np.arange(shape[1])[None, :].repeat(shape[0], 0) == shape[1] - 1
    return np.where((np.asarray(unrouted) != 0)[:, :, None, None], -1, experts.astype(np.int32))


def _split_content(content: ObjectStub) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the tensors of a batch as arrays, and its metadata."""
    state = content.state if content.state is not None else content.arguments[1]
    tensors = {name: _to_array(value) for name, value in state["batch_dict"].items()}
    info = state.get("metadata")
    return tensors, info if isinstance(info, Mapping) else {}


def _to_array(value: Any) -> Any:
    """Return a serialized tensor as an array; None for what is no tensor, such as a list of them."""
    if not isinstance(value, Mapping) or "data" not in value:
        return None
    if value.get("format") == "torch":
        return read_torch_file_bytes(value["data"])
    return leaf(value["data"], value["dtype"], value["shape"])


FORMATS = (RolloutFormat("skyrl", is_batch, batch, step_of_name=step_of_name),)
