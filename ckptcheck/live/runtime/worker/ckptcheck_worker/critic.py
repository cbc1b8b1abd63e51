"""Compares a critic in transformers with the same critic in megatron-core: values, loss and gradients.

Every model is built in forked processes: autograd keeps threads, which a fork loses.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")

import megatron.core  # noqa: E402
import megatron.core.models.gpt.gpt_layer_specs  # noqa: E402
import megatron.core.models.gpt.gpt_model  # noqa: E402
import megatron.core.pipeline_parallel.schedules  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from .megatron_device import join_process_group  # noqa: E402
from .megatron_model import build, rank_parameters  # noqa: E402
from .megatron_rank import Rank  # noqa: E402
from .megatron_trainer import make_plan  # noqa: E402
from .ranks import Ranks  # noqa: E402

HEAD_FILE, GRADIENTS_FILE = "head.safetensors", "gradients.safetensors"
"""The files of the reference: its head as score.weight and score.bias, and the gradient of every weight."""
FRESH_SCALE = 0.02
"""Standard deviation of a head that the checkpoint lacks."""
SIZE = 2
"""Sequences of a batch: one of full length, one that is padded."""


def compute_reference(
    folder: str, head: dict[str, list[str]], output: str, batches: int, length: int, seed: int
) -> dict[str, Any]:
    """Load a critic in transformers, and compute values, loss and gradients.

    head: "weight", "bias" → the file and the name of the stored head; empty to draw one. output: the folder for
    HEAD_FILE and GRADIENTS_FILE. Returns versions, transformers' report of the load, and the results.
    """
    ranks = Ranks(1, lambda _: Reference(folder, head))
    try:
        found: dict[str, Any] = ranks.call_all("run", output=output, batches=batches, length=length, seed=seed)[0]
        return found
    finally:
        ranks.close()


class Reference:
    """A critic in transformers' class for token classification with one label, as verl and ROLL load it."""

    def __init__(self, folder: str, head: dict[str, list[str]]) -> None:
        transformers.logging.set_verbosity_error()
        config = transformers.AutoConfig.from_pretrained(folder)
        config.num_labels = 1
        self.model, self.info = transformers.AutoModelForTokenClassification.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        self.model.eval()
        self.set_head(head)

    def set_head(self, head: dict[str, list[str]]) -> None:
        """Give the model the stored head, whatever its name, or one that is drawn."""
        from safetensors import safe_open

        score = self.model.score
        with torch.no_grad():
            if score.bias is not None:
                score.bias.zero_()
            if not head:
                drawn = torch.randn(score.weight.shape, generator=torch.Generator().manual_seed(11))
                score.weight.copy_(FRESH_SCALE * drawn)
            for part, (file, name) in head.items():
                with safe_open(file, framework="pt") as opened:
                    getattr(score, part).copy_(opened.get_tensor(name).float())

    def run(self, output: str, batches: int, length: int, seed: int) -> dict[str, Any]:
        """Return the report of the load and the results."""
        from safetensors.torch import save_file

        made = make_batches(batches, length, self.model.config.vocab_size, seed)
        shapes, values, losses = [], [], []
        for batch in made:
            logits = self.model(batch["tokens"], attention_mask=batch["present"].long(), use_cache=False).logits
            shapes.append(list(logits.shape))
            own = shift_values(logits)
            loss = value_loss(own, batch)
            (loss / len(made)).backward()
            values.append(own[batch["mask"] > 0].tolist())
            losses.append(loss.item())
        score = self.model.score
        kept = {"score.weight": score.weight.detach()}
        if score.bias is not None:
            kept["score.bias"] = score.bias.detach()
        save_file(kept, os.path.join(output, HEAD_FILE))
        gradients = dict(
            part
            for name, weight in self.model.named_parameters()
            for part in split_experts(name, weight.grad if weight.grad is not None else torch.zeros_like(weight))
        )
        save_file(gradients, os.path.join(output, GRADIENTS_FILE))
        return {
            "class": type(self.model).__name__,
            "version": transformers.__version__,
            "missing": sorted(self.info["missing_keys"]),
            "unexpected": sorted(self.info["unexpected_keys"]),
            "parameters": sorted(gradients),
            "without_gradient": sorted(name for name, gradient in gradients.items() if not gradient.any()),
            "head_std": score.weight.std().item(),
            "shapes": shapes,
            "values": values,
            "loss": sum(losses) / len(losses),
        }


def compute_megatron(
    settings: dict[str, Any],
    table: dict[str, dict[str, Any]],
    files: dict[str, str],
    output: str,
    batches: int,
    length: int,
    seed: int,
) -> dict[str, Any]:
    """Load the same critic in megatron-core, and compare its gradients with those of the reference.

    settings: see ckptcheck/live/runtime/trainers/megatron_settings.py. files: Hugging Face name → safetensors file.
    Returns the results of the ranks, and for every parameter [distance, largest of the reference].
    """
    world = settings["layout"]["world"]
    settings = {**settings, "gpus": False}
    store_file = tempfile.mktemp(prefix="ranks-", dir=os.getcwd())
    ranks = Ranks(world, lambda rank: CriticRank(rank, world, store_file, settings))
    try:
        described = ranks.call_all("describe_parameters")
        plan = make_plan(described, table, settings)
        ranks.call_all("set_plan", plan=plan)
        head = os.path.join(output, HEAD_FILE)
        ranks.call_all("load", files={**files, "score.weight": head, "score.bias": head})
        answers = ranks.call_all("run", batches=batches, length=length, seed=seed)
        compared = ranks.call_all("compare_gradients", file=os.path.join(output, GRADIENTS_FILE))
    finally:
        ranks.close()
    last = next(answer for answer in reversed(answers) if answer["values"])
    gradients: dict[str, list[float]] = {}
    for part in compared:
        for name, (distance, largest, own) in part.items():
            before = gradients.get(name, [0.0, 0.0, 0.0])
            gradients[name] = [max(before[0], distance), max(before[1], largest), max(before[2], own)]
    return {
        "version": megatron.core.__version__,
        "heads": [answer["heads"] for answer in answers],
        "shapes": last["shapes"],
        "values": last["values"],
        "loss": sum(last["losses"]) / len(last["losses"]),
        "gradients": gradients,
        "loaded": sorted(part["name"] for weight in plan for part in weight["parts"]),
    }


class CriticRank(Rank):
    """A rank of a critic in Megatron: one model, or one for each of its virtual pipeline stages."""

    def __init__(self, rank: int, world: int, store_file: str, settings: dict[str, Any]) -> None:
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        self.rank = rank
        self.settings = settings
        layout = settings["layout"]
        self.device = join_process_group(rank, world, store_file, settings["gpus"])
        virtual = layout["vpp"] > 1
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout["tp"],
            pipeline_model_parallel_size=layout["pp"],
            virtual_pipeline_model_parallel_size=layout["vpp"] if virtual else None,
            expert_model_parallel_size=layout["ep"],
            expert_tensor_parallel_size=layout["etp"],
        )
        model_parallel_cuda_manual_seed(1)
        self.chunks = [build(settings, chunk if virtual else None) for chunk in range(layout["vpp"])]
        self.parameters = {
            parameter.name: parameter for chunk in self.chunks for parameter in rank_parameters(chunk, settings)
        }
        self.plan, self.pieces = [], {}

    def run(self, batches: int, length: int, seed: int) -> dict[str, Any]:
        """Run all batches by Megatron's own schedule; the gradients stay in the model."""
        from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

        shapes: list[list[int]] = []
        values: list[Any] = []

        def forward(data: Any, model: Any) -> Any:
            batch = next(data)
            positions = torch.arange(length).expand(SIZE, -1)
            return model(batch["tokens"], positions, None), partial(loss_of, batch)

        def loss_of(batch: dict[str, Any], output: Any) -> Any:
            shapes.append(list(output.shape))
            own = shift_values(output)
            values.append(own[batch["mask"] > 0].tolist())
            loss = value_loss(own, batch)
            return loss, {"loss": loss.item()}

        made = make_batches(batches, length, self.settings["vocabulary"], seed)
        several = len(self.chunks) > 1
        results = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[iter(made) for _ in self.chunks] if several else iter(made),
            model=self.chunks if several else self.chunks[0],
            num_microbatches=len(made),
            seq_length=length,
            micro_batch_size=SIZE,
            forward_only=False,
        )
        self._share_gradients()
        heads = [name for name in self.parameters if name.startswith("value_head")]
        return {"shapes": shapes, "values": values, "losses": [part["loss"] for part in results], "heads": heads}

    def _share_gradients(self) -> None:
        """Sum the gradients of what tensor-parallel ranks share, such as norms of keys: each rank has seen its own heads only.

        Megatron does it in `finalize_model_grads`, of which the rest needs its DistributedDataParallel.
        """
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads

        layout = self.settings["layout"]
        # ranks that share experts alone compute the same batch, so an expert sees it as often as there are such ranks
        repeats = layout["world"] // (layout["tp"] * layout["pp"])
        for parameter in self.parameters.values() if repeats > 1 else ():
            if ".local_experts." in parameter.name and parameter.weight.grad is not None:
                parameter.weight.grad /= repeats
        for chunk in self.chunks:
            chunk.ddp_config = DistributedDataParallelConfig()
        _allreduce_non_tensor_model_parallel_grads(self.chunks, self.chunks[0].config)

    def compare_gradients(self, file: str) -> dict[str, list[float]]:
        """Return parameter of this rank → distance of its gradient from the reference's, the largest there and here."""
        from safetensors import safe_open

        compared = {}
        with safe_open(file, framework="pt") as opened:
            for weight in self.plan:
                for parameter in self._own_parameters(weight):
                    whole = self._build_whole(weight, [opened.get_tensor(part["name"]) for part in weight["parts"]])
                    expected = self._own_shard(parameter, weight, whole)
                    own = parameter.weight.grad if parameter.weight.grad is not None else torch.zeros_like(expected)
                    compared[parameter.name] = [
                        (own - expected).abs().max().item(),
                        expected.abs().max().item(),
                        own.abs().max().item(),
                    ]
        return compared


def split_experts(name: str, weight: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a weight that transformers keeps for all experts, by their names in checkpoints; others as they are.

    Gate and up are one matrix: [experts, 2 · intermediate, hidden].
    """
    if weight.dim() != 3 or not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
        yield name, weight
        return
    stem, _, part = name.rpartition(".")
    for number, expert in enumerate(weight):
        pieces = expert.chunk(2) if part == "gate_up_proj" else (expert,)
        for each, piece in zip(("gate_proj", "up_proj") if pieces[1:] else ("down_proj",), pieces, strict=True):
            yield f"{stem}.{number}.{each}.weight", piece.contiguous()


def make_batches(number: int, length: int, vocabulary: int, seed: int) -> list[dict[str, Any]]:
    """Return batches of tokens [2, length], a mask [2, length - 1] and returns [2, length - 1].

    The last quarter of the second sequence is padding. The mask leaves out padding, and the first two tokens as a prompt.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(number):
        tokens = torch.randint(0, vocabulary, (SIZE, length), generator=generator)
        present = torch.ones(SIZE, length, dtype=torch.bool)
        present[1, length - max(1, length // 4) :] = False
        mask = present[:, 1:].float()
        mask[:, :1] = 0.0
        batches.append(
            {
                "tokens": tokens * present,
                "present": present,
                "mask": mask,
                "returns": torch.randn(SIZE, length - 1, generator=generator),
            }
        )
    return batches


def shift_values(output: Any) -> Any:
    """Return the values of all tokens but the last: [batch, length, 1] → [batch, length - 1], as ROLL's critic worker does."""
    return output[:, :-1].squeeze(-1)


def value_loss(values: Any, batch: dict[str, Any]) -> Any:
    """Return half the squared error of values [batch, length - 1], each sequence over its mask (ROLL's ``CriticWorker``)."""
    error = (values - batch["returns"]) ** 2 * batch["mask"]
    return 0.5 * (error.sum(-1) / batch["mask"].sum(-1)).mean()


RPC_METHODS = {"compute_reference": compute_reference, "compute_megatron": compute_megatron}
