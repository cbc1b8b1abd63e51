"""The Megatron trainer's functions: ``load`` forks the ranks, the others call them.

The plan describes the whole model for all ranks: a list in the order of export, one entry for each Megatron weight:

    own      decoder.layers.3.self_attention.linear_qkv.weight       Megatron's name, numbered over the whole model
    layout   qkv        axis  0      how it is built from the parts, and the axis along which ranks shard it (null: replicated)
    parts    [{"name": model.layers.3.self_attn.q_proj.weight, "shape": [2048, 1024]}, …]
    ranks    [2, 3]     shapes  [[1024, 1024], [1024, 1024]]         the ranks that send shards at export
    owners   [2, 3, 6, 7]                                            all ranks that hold a shard
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Collection
from typing import Any

# megatron logs every setting of every rank
logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")

import megatron.core  # noqa: E402
import megatron.core.dist_checkpointing  # noqa: E402
import megatron.core.distributed  # noqa: E402
import megatron.core.models.gpt.gpt_layer_specs  # noqa: E402
import megatron.core.models.gpt.gpt_model  # noqa: E402
import megatron.core.optimizer  # noqa: E402
import megatron.core.pipeline_parallel.schedules  # noqa: E402
import torch  # noqa: E402

from . import ipc, tensor_files  # noqa: E402
from .megatron_device import should_use_gpus  # noqa: E402
from .megatron_layout import to_hugging_face  # noqa: E402
from .megatron_rank import VOCABULARY_NAMES, Rank  # noqa: E402
from .ranks import Ranks  # noqa: E402
from .scoring import check_sequences  # noqa: E402

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
PLAN_ORDER = {"embedding": 0, "decoder.layers": 1, "decoder.final_layernorm": 2, "output_layer": 3, "value_head": 4}
STATE: dict[str, Any] = {}


def load(settings: dict[str, Any], table: dict[str, dict[str, Any]], files: dict[str, str]) -> dict[str, Any]:
    """Start the ranks and load the checkpoint, replacing earlier ranks. Returns versions, GPUs and the plan.

    table: Megatron name with {} for numbers → {"layout", "targets"}. files: Hugging Face name → safetensors file.
    Raises LookupError if the names of the checkpoint and of the model differ.
    """
    if "ranks" in STATE:
        STATE.pop("ranks").close()
    world = settings["layout"]["world"]
    settings = {**settings, "gpus": should_use_gpus(settings["device"], world)}
    # the working directory is private to this process
    store_file = tempfile.mktemp(prefix="ranks-", dir=os.getcwd())
    ranks = Ranks(world, lambda rank: Rank(rank, world, store_file, settings))
    try:
        plan = make_plan(ranks.call_all("describe_parameters"), table, settings)
        ranks.call_all("set_plan", plan=plan)
        _require_same_names(files, {part["name"] for weight in plan for part in weight["parts"]})
        ranks.call_all("load", files=files)
        gpus = ranks.call_all("gpu_uuid")
        visible = ranks.call_all("visible_gpus")[0]
    except Exception:
        ranks.close()
        raise
    STATE.update(ranks=ranks, replicas={}, vocabulary=settings["vocabulary"])
    version = megatron.core.__version__
    return {
        "version": version,
        "torch": torch.__version__,
        "gpus": gpus,
        "sees": visible,
        "nccl": ipc.nccl_version() if gpus else "",
        "plan": plan,
    }


def _require_same_names(checkpoint: Collection[str], model: Collection[str]) -> None:
    for names, what in (
        (sorted(set(model) - set(checkpoint)), "lacks"),
        (sorted(set(checkpoint) - set(model)), "has, and Megatron's model has no place for,"),
    ):
        if names:
            raise LookupError(
                f"the checkpoint {what} {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else "")
            )


def make_plan(
    parameters_by_rank: list[list[dict[str, Any]]], table: dict[str, dict[str, Any]], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Build the plan from the parameters of each rank. Raises LookupError for a parameter that the table lacks."""
    holders: dict[str, dict[int, list[tuple[int, dict[str, Any]]]]] = {}
    for rank, parameters in enumerate(parameters_by_rank):
        for parameter in parameters:
            if not parameter["is_tied_copy"]:
                shards = holders.setdefault(parameter["name"], {})
                shards.setdefault(parameter["part"], []).append((rank, parameter))
    order = {name: number for number, name in enumerate(table)}
    plan = []
    for own, shards in holders.items():
        pattern = NUMBER.sub("{}", own)
        if pattern not in table:
            raise LookupError(f"there is no Hugging Face name for Megatron's {own}")
        entry, numbers = table[pattern], NUMBER.findall(own)
        names = [target.format(*numbers) for target in entry["targets"]]
        senders = [shards[part][0] for part in sorted(shards)]
        axis = senders[0][1]["axis"]
        shape = list(senders[0][1]["shape"])
        if axis is not None:
            shape[axis] *= len(senders)
        if own in VOCABULARY_NAMES:
            shape[0] = settings["vocabulary"]
        config = settings["config"]
        empty = torch.empty(shape, device="meta")
        parts = to_hugging_face(entry["layout"], empty, config["num_query_groups"], config["kv_channels"])
        plan.append(
            {
                "own": own,
                "layout": entry["layout"],
                "axis": axis,
                "parts": [{"name": name, "shape": [*part.shape]} for name, part in zip(names, parts, strict=True)],
                "ranks": [rank for rank, _ in senders],
                "shapes": [parameter["shape"] for _, parameter in senders],
                "owners": sorted(rank for owners in shards.values() for rank, _ in owners),
            }
        )

    def export_order(weight: dict[str, Any]) -> tuple[int, int, int, int]:
        own = weight["own"]
        numbers = [*map(int, NUMBER.findall(own)), 0, 0]
        group = next(rank for prefix, rank in PLAN_ORDER.items() if own.startswith(prefix))
        return group, numbers[0], numbers[1], order[NUMBER.sub("{}", own)]

    return sorted(plan, key=export_order)


def score(sequences: list[list[int]], temperature: float) -> list[list[float]]:
    """Return the logprob of each token after the first."""
    check_sequences(sequences, STATE.get("vocabulary", 0))
    return _merge_scores(_ranks().call_all("score", sequences=sequences, temperature=temperature), len(sequences))


def score_full_vocab(sequences: list[list[int]], path: str) -> None:
    """Write the logprobs of the whole vocabulary after each token but the last: "0" [tokens - 1, vocabulary], …"""
    check_sequences(sequences, STATE.get("vocabulary", 0))
    numbers = {
        number for answer in _ranks().call_all("write_full_vocab", sequences=sequences, path=path) for number in answer
    }
    logprobs: dict[str, Any] = {}
    for number in sorted(numbers, key=int):
        logprobs |= tensor_files.read_tensors({"kind": "file", "path": f"{path}.{number}", "tensors": 1, "bytes": 0})
    tensor_files.write_tensors(logprobs, {"kind": "file", "path": path})
    for number in numbers:
        os.remove(f"{path}.{number}")


def capture_activations(tokens: list[int], path: str) -> list[dict[str, Any]]:
    """Write the activations of every module in one forward, to one file a rank."""
    check_sequences([tokens], STATE.get("vocabulary", 0))
    captures: list[dict[str, Any]] = _ranks().call_all("capture_activations", tokens=tokens, path=path)
    return captures


def decode_greedy(tokens: list[int], number: int) -> list[int]:
    """Return the tokens that greedy decoding adds, each from a forward over all earlier tokens."""
    return sample([tokens], number, 0.0, 0)[0]


def sample(
    prompts: list[list[int]], number: int, temperature: float, seed: int, top_p: float = 1.0, top_k: int = 0
) -> list[list[int]]:
    """Return sampled tokens, each from a forward over all earlier tokens: megatron-core's trainer has no KV cache."""
    sequences = [list(prompt) for prompt in prompts]
    check_sequences(sequences, STATE.get("vocabulary", 0))
    for _ in range(number):
        answers = _ranks().call_all(
            "next_tokens", sequences=sequences, temperature=temperature, seed=seed, top_p=top_p, top_k=top_k
        )
        sampled = {name: token for answer in answers for name, token in answer.items()}
        for place, sequence in enumerate(sequences):
            sequence.append(sampled[str(place)])
    return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]


def expert_routing(sequence: list[int]) -> list[list[list[int]]]:
    """Return the experts of every token as [layer][token][choice]; [] if the ranks cannot report them."""
    check_sequences([sequence], STATE.get("vocabulary", 0))
    merged = {
        int(name): rows
        for answer in _ranks().call_all("expert_routing", sequence=sequence)
        for name, rows in answer.items()
    }
    return [merged[layer] for layer in sorted(merged)]


def step(sequences: list[list[int]], seed: int, rate: float) -> dict[str, Any]:
    """Take an optimizer step. unchanged: Megatron's names of the parameters that did not change."""
    check_sequences(sequences, STATE.get("vocabulary", 0), 2)
    answers = _ranks().call_all("step", sequences=sequences, seed=seed, rate=rate)
    scores = _merge_scores([answer["scores"] for answer in answers], len(sequences))
    return {
        "scores": scores,
        "grad_norm": answers[0]["norm"],
        "unchanged": sorted({name for answer in answers for name in answer["unchanged"]}),
    }


def shard_digests(pieces: dict[str, list[Any]] | None = None) -> list[dict[str, Any]]:
    """Return each rank's part of every exported weight, beside the same part of the export.

    pieces: of weights that join several. They get no sums of their own here: a rank holds a part of such a weight.
    """
    held_by_rank = _ranks().call_all("digest_pieces")
    places = {(piece["name"], piece["axis"], piece["begin"], piece["end"]) for held in held_by_rank for piece in held}
    wanted = [dict(zip(("name", "axis", "begin", "end"), place)) for place in sorted(places)]
    digests = _ranks().call_all("digest_exported_pieces", pieces=wanted)[0]
    exported = dict(zip(sorted(places), digests))
    return [
        {**piece, "rank": rank, "exported": exported[piece["name"], piece["axis"], piece["begin"], piece["end"]]}
        for rank, held in enumerate(held_by_rank)
        for piece in held
    ]


def mismatched_replicas() -> list[dict[str, Any]]:
    """Return the parameters whose replicas differ between ranks: Megatron's name, the ranks that hold each copy, and
    the ranks whose copy did not change since the last call, while another rank's copy did.
    """
    digests_by_rank = _ranks().call_all("parameter_digests")
    parameters_by_rank = _ranks().call_all("describe_parameters")
    copies: dict[tuple[str, int], dict[int, str]] = {}
    for rank, (rank_digests, parameters) in enumerate(zip(digests_by_rank, parameters_by_rank, strict=True)):
        for parameter in parameters:
            name = "embedding.word_embeddings.weight" if parameter["is_tied_copy"] else parameter["name"]
            copies.setdefault((name, parameter["part"]), {})[rank] = rank_digests[parameter["name"]]
    before: dict[tuple[str, int], dict[int, str]] = STATE.get("replicas", {})
    STATE["replicas"] = copies
    return [
        _describe_copies(key[0], own, before.get(key, {}))
        for key, own in sorted(copies.items())
        if len(set(own.values())) > 1
    ]


def _describe_copies(name: str, own: dict[int, str], before: dict[int, str]) -> dict[str, Any]:
    """Describe the copies of a parameter. own: rank → digest; before: own of the last call, {} for the first."""
    ranks_by_copy: dict[str, list[int]] = {}
    for rank, value in own.items():
        ranks_by_copy.setdefault(value, []).append(rank)
    stale = [rank for rank, value in own.items() if before.get(rank) == value]
    return {"name": name, "copies": list(ranks_by_copy.values()), "stale": stale if len(stale) < len(own) else []}


def _ranks() -> Ranks:
    if "ranks" not in STATE:
        raise RuntimeError("no model is loaded")
    ranks: Ranks = STATE["ranks"]
    return ranks


def _merge_scores(answers: list[dict[str, list[float]]], number: int) -> list[list[float]]:
    """Merge the scores of the last stages; tensor-parallel ranks return the same scores."""
    merged = {name: values for answer in answers for name, values in answer.items()}
    return [merged[str(which)] for which in range(number)]


def _of_rank_0(method: str) -> Callable[..., Any]:
    """Return a function that calls a method of `Rank` on every rank, and returns the answer of rank 0."""
    return lambda **arguments: _ranks().call_all(method, **arguments)[0]


RPC_METHODS = {
    **{
        method: _of_rank_0(method)
        for method in (
            "perturb",
            "export",
            "send",
            "nccl_unique_id",
            "share_ipc",
            "release_ipc",
            "save_checkpoint",
            "digests",
        )
    },
    "load": load,
    "score": score,
    # Megatron pads to the longest sequence in any case
    "score_batched": score,
    "score_full_vocab": score_full_vocab,
    "sample": sample,
    "expert_routing": expert_routing,
    "capture_activations": capture_activations,
    "decode_greedy": decode_greedy,
    "step": step,
    "shard_digests": shard_digests,
    "mismatched_replicas": mismatched_replicas,
}
