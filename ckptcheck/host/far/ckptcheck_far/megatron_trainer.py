"""The verbs of the Megatron trainer: ``load`` forks the ranks, the others ask them.

The plan is what all ranks know of the whole model, a list in the order of export, one entry for each Megatron weight:

    own      decoder.layers.3.self_attention.linear_qkv.weight       Megatron's name, numbered over the whole model
    layout   qkv        axis  0      how it is made of the parts, and along which axis ranks share it (null: all have it)
    parts    [{"name": model.layers.3.self_attn.q_proj.weight, "shape": [2048, 1024]}, …]
    ranks    [2, 3]     shapes  [[1024, 1024], [1024, 1024]]         who sends which part at export
    owners   [2, 3, 6, 7]                                            who else holds one
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import warnings
from collections.abc import Collection
from typing import Any

logging.disable(logging.WARNING)  # megatron tells every rank's every setting
warnings.filterwarnings("ignore")

import megatron.core  # noqa: E402
import megatron.core.dist_checkpointing  # noqa: E402
import megatron.core.distributed  # noqa: E402
import megatron.core.models.gpt.gpt_layer_specs  # noqa: E402
import megatron.core.models.gpt.gpt_model  # noqa: E402
import megatron.core.optimizer  # noqa: E402
import megatron.core.pipeline_parallel.schedules  # noqa: E402
import torch  # noqa: E402

from . import plane  # noqa: E402
from .megatron_device import gpus  # noqa: E402
from .megatron_layout import take_apart  # noqa: E402
from .megatron_rank import VOCABULARY_NAMES, Rank  # noqa: E402
from .ranks import Ranks  # noqa: E402
from .sequences import checked  # noqa: E402

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
OUTSIDE = {"embedding": 0, "decoder.layers": 1, "decoder.final_layernorm": 2, "output_layer": 3}
STATE: dict[str, Any] = {}


def load(settings: dict[str, Any], table: dict[str, dict[str, Any]], files: dict[str, str]) -> dict[str, Any]:
    """Start the ranks and load them, in place of those that were loaded before. Returns what was started and the plan.

    table: Megatron name with {} for numbers → {"layout", "targets"}. files: Hugging Face name → safetensors file.
    Raises LookupError where the checkpoint and the model differ in names.
    """
    if "ranks" in STATE:
        STATE.pop("ranks").close()
    world = settings["layout"]["world"]
    settings = {**settings, "gpus": gpus(settings["device"], world)}
    meeting = tempfile.mktemp(prefix="ranks-", dir=os.getcwd())  # a private folder
    ranks = Ranks(world, lambda rank: Rank(rank, world, meeting, settings))
    try:
        plan = planned(ranks.ask("parts"), table, settings)
        ranks.ask("follow", plan=plan)
        _compare(files, {part["name"] for weight in plan for part in weight["parts"]})
        ranks.ask("load", files=files)
        places = ranks.ask("gpu")
        seen = ranks.ask("sees")[0]
    except Exception:
        ranks.close()
        raise
    STATE.update(ranks=ranks, vocabulary=settings["vocabulary"])
    version = megatron.core.__version__
    return {"version": version, "torch": torch.__version__, "gpus": places, "sees": seen, "plan": plan}


def _compare(there: Collection[str], wanted: Collection[str]) -> None:
    for names, what in (
        (sorted(set(wanted) - set(there)), "lacks"),
        (sorted(set(there) - set(wanted)), "has, and Megatron's model has no place for,"),
    ):
        if names:
            raise LookupError(
                f"the checkpoint {what} {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else "")
            )


def planned(
    told: list[list[dict[str, Any]]], table: dict[str, dict[str, Any]], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Make the plan of what each rank says it holds. Raises LookupError for a parameter that the table does not know."""
    held: dict[str, dict[int, list[tuple[int, dict[str, Any]]]]] = {}
    for rank, pieces in enumerate(told):
        for piece in pieces:
            if not piece["copy"]:
                held.setdefault(piece["name"], {}).setdefault(piece["part"], []).append((rank, piece))
    order = {name: number for number, name in enumerate(table)}
    plan = []
    for own, parts in held.items():
        pattern = NUMBER.sub("{}", own)
        if pattern not in table:
            raise LookupError(f"there is no Hugging Face name for Megatron's {own}")
        entry, numbers = table[pattern], NUMBER.findall(own)
        names = [target.format(*numbers) for target in entry["targets"]]
        senders = [parts[part][0] for part in sorted(parts)]
        axis = senders[0][1]["axis"]
        shape = list(senders[0][1]["shape"])
        if axis is not None:
            shape[axis] *= len(senders)
        if own in VOCABULARY_NAMES:
            shape[0] = settings["vocabulary"]
        config = settings["config"]
        empty = torch.empty(shape, device="meta")
        cut = take_apart(entry["layout"], empty, config["num_query_groups"], config["kv_channels"])
        plan.append(
            {
                "own": own,
                "layout": entry["layout"],
                "axis": axis,
                "parts": [{"name": name, "shape": [*part.shape]} for name, part in zip(names, cut, strict=True)],
                "ranks": [rank for rank, _ in senders],
                "shapes": [piece["shape"] for _, piece in senders],
                "owners": sorted(rank for holders in parts.values() for rank, _ in holders),
            }
        )

    def place(weight: dict[str, Any]) -> tuple[int, int, int, int]:
        own = weight["own"]
        numbers = [*map(int, NUMBER.findall(own)), 0, 0]
        group = next(rank for prefix, rank in OUTSIDE.items() if own.startswith(prefix))
        return group, numbers[0], numbers[1], order[NUMBER.sub("{}", own)]

    return sorted(plan, key=place)


def score(sequences: list[list[int]], temperature: float) -> list[list[float]]:
    """Return the logprob of each token after the first."""
    checked(sequences, STATE.get("vocabulary", 0))
    return _merged(_ranks().ask("score", sequences=sequences, temperature=temperature), len(sequences))


def full(sequences: list[list[int]], path: str) -> None:
    """Write the logprobs of the whole vocabulary after each token but the last: "0" [tokens - 1, vocabulary], …"""
    checked(sequences, STATE.get("vocabulary", 0))
    numbers = {number for answer in _ranks().ask("full", sequences=sequences, path=path) for number in answer}
    found: dict[str, Any] = {}
    for number in sorted(numbers, key=int):
        found |= plane.get({"plane": "file", "path": f"{path}.{number}", "tensors": 1, "bytes": 0})
    plane.put(found, {"plane": "file", "path": path})
    for number in numbers:
        os.remove(f"{path}.{number}")


def capture(tokens: list[int], path: str) -> list[dict[str, Any]]:
    """Keep what every module gives out in a forward, in a file for each rank."""
    checked([tokens], STATE.get("vocabulary", 0))
    heard: list[dict[str, Any]] = _ranks().ask("capture", tokens=tokens, path=path)
    return heard


def greedy(tokens: list[int], number: int) -> list[int]:
    """Return the tokens that greedy decoding adds, each by a forward over all before it."""
    return sample([tokens], number, 0.0, 0)[0]


def sample(
    prompts: list[list[int]], number: int, temperature: float, seed: int, top_p: float = 1.0, top_k: int = 0
) -> list[list[int]]:
    """Return tokens drawn from the model, each by a forward over all before it: megatron-core's trainer keeps no keys."""
    sequences = [list(prompt) for prompt in prompts]
    checked(sequences, STATE.get("vocabulary", 0))
    for _ in range(number):
        answers = _ranks().ask(
            "next_tokens", sequences=sequences, temperature=temperature, seed=seed, top_p=top_p, top_k=top_k
        )
        drawn = {name: token for answer in answers for name, token in answer.items()}
        for place, sequence in enumerate(sequences):
            sequence.append(drawn[str(place)])
    return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]


def routes(sequence: list[int]) -> list[list[list[int]]]:
    """Return the experts that every token goes to: layers, tokens, choices; [] where it cannot be told."""
    checked([sequence], STATE.get("vocabulary", 0))
    merged = {int(name): rows for answer in _ranks().ask("routes", sequence=sequence) for name, rows in answer.items()}
    return [merged[layer] for layer in sorted(merged)]


def step(sequences: list[list[int]], seed: int, rate: float) -> dict[str, Any]:
    """Take an optimizer step. unchanged: Megatron's names of the parameters that it left as they were."""
    checked(sequences, STATE.get("vocabulary", 0), 2)
    answers = _ranks().ask("step", sequences=sequences, seed=seed, rate=rate)
    scores = _merged([answer["scores"] for answer in answers], len(sequences))
    return {
        "scores": scores,
        "grad_norm": answers[0]["norm"],
        "unchanged": sorted({name for answer in answers for name in answer["unchanged"]}),
    }


def perturb(scale: float, seed: int) -> None:
    """Multiply every weight by 1 + scale × noise."""
    _ranks().ask("perturb", scale=scale, seed=seed)


def export(buckets: list[list[int]], addresses: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Put all weights on the plane and return the parcels."""
    parcels: list[dict[str, Any]] = _ranks().ask("export", buckets=buckets, addresses=addresses)[0]
    return parcels


def send(group: dict[str, Any]) -> None:
    """Broadcast all weights as rank 0 of a process group (see communicator.py)."""
    _ranks().ask("send", group=group)


def unique_id() -> str:
    """Return the id of an NCCL group in which we are rank 0."""
    return str(_ranks().ask("unique_id")[0])


def lend(gpus: list[str]) -> list[dict[str, Any]]:
    """Lend all weights to an engine on these GPUs, and say how each is borrowed (see ipc.py)."""
    said: list[dict[str, Any]] = _ranks().ask("lend", gpus=gpus)[0]
    return said


def reclaim() -> None:
    """Take back what is lent."""
    _ranks().ask("reclaim")


def checkpoint(folder: str) -> None:
    """Write a torch_dist checkpoint by Megatron's own saver."""
    _ranks().ask("checkpoint", folder=folder)


def digests() -> dict[str, str]:
    """Return the digest of every exported weight."""
    found: dict[str, str] = _ranks().ask("digests")[0]
    return found


def replicas() -> list[str]:
    """Return Megatron's names of the parameters of which not all ranks hold the same, though they should."""
    told = _ranks().ask("replicas")
    parts = _ranks().ask("parts")
    seen: dict[tuple[str, int], set[str]] = {}
    for digest, pieces in zip(told, parts, strict=True):
        for piece in pieces:
            name = "embedding.word_embeddings.weight" if piece["copy"] else piece["name"]
            seen.setdefault((name, piece["part"]), set()).add(digest[piece["name"]])
    return sorted({name for (name, _), digests in seen.items() if len(digests) > 1})


def disturb(rank: int, name: str) -> None:
    """Change one number of a parameter on one rank only."""
    _ranks().ask("disturb", rank=rank, name=name)


def _ranks() -> Ranks:
    if "ranks" not in STATE:
        raise RuntimeError("no model is loaded")
    ranks: Ranks = STATE["ranks"]
    return ranks


def _merged(answers: list[dict[str, list[float]]], number: int) -> list[list[float]]:
    """Put the scores of the last stages together; tensor-parallel ranks tell the same twice."""
    merged = {name: values for answer in answers for name, values in answer.items()}
    return [merged[str(which)] for which in range(number)]


VERBS = {
    "load": load,
    "score": score,
    "padded": score,  # it fills up to the longest anyway
    "full": full,
    "sample": sample,
    "routes": routes,
    "capture": capture,
    "greedy": greedy,
    "step": step,
    "perturb": perturb,
    "export": export,
    "send": send,
    "unique_id": unique_id,
    "lend": lend,
    "reclaim": reclaim,
    "checkpoint": checkpoint,
    "digests": digests,
    "replicas": replicas,
    "disturb": disturb,
}
