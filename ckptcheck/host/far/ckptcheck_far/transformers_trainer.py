"""The verbs of the trainer that is plain transformers in one process: a reference, and what any causal model can use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from . import communicator, ipc
from .capture import listening
from .capture import put as put_captured
from .change import DECAY, EPSILON, noise, shaken, token_weights
from .digest import digests as digest_all
from .drawing import chosen, widen
from .hf_taps import taps
from .padded import padded
from .plane import put
from .sequences import checked

STATE: dict[str, Any] = {}
LONG = 2048
"""Tokens from which attention is not computed by the plain formula, whose scores grow with their square."""
ROWS = 1024
"""Tokens of which the whole vocabulary is held in float32 at a time."""


def load(folder: str, dtype: str, head_fp32: bool, device: str = "auto") -> dict[str, Any]:
    """Load a checkpoint. Returns what was started, and name, shape and own name of what is exported.

    device: cpu, cuda, or auto: a GPU where there is one. Raises RuntimeError where there is none that was asked for.
    """
    STATE.clear()
    transformers.logging.set_verbosity_error()
    there = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not there:
        raise RuntimeError(f"torch {torch.__version__} sees no GPU")
    place = torch.device("cuda", torch.cuda.current_device()) if there else torch.device("cpu")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=getattr(torch, dtype), attn_implementation="eager"
    )
    STATE.update(model=model.to(place).eval(), device=place, optimizer=None, master=[])
    if head_fp32:
        widen(model.get_output_embeddings())
    STATE["vocabulary"] = model.get_input_embeddings().weight.shape[0]
    plan = [{"name": name, "shape": [*weight.shape]} for name, weight in _stream()]
    about = {"version": transformers.__version__, "torch": torch.__version__, "plan": plan}
    return {**about, "gpus": [ipc.uuid(place.index)] if there else [], "sees": list(ipc.here()) if there else []}


def score(sequences: list[list[int]], temperature: float) -> list[list[float]]:
    """Return the logprob of each token after the first, by a forward for each sequence."""
    checked(sequences, STATE["vocabulary"])
    with torch.no_grad():
        return [_logprobs(sequence, temperature).tolist() for sequence in sequences]


def together(sequences: list[list[int]], temperature: float) -> list[list[float]]:
    """Return the same by one forward for all, filled up to the longest."""
    checked(sequences, STATE["vocabulary"])
    return padded(STATE["model"], sequences, STATE["device"], temperature)


def full(sequences: list[list[int]], path: str) -> None:
    """Write the logprobs of the whole vocabulary after each token but the last: "0" [tokens - 1, vocabulary], …"""
    checked(sequences, STATE["vocabulary"])
    with torch.no_grad():
        found = {str(n): _logits(tokens)[:-1].float().log_softmax(-1) for n, tokens in enumerate(sequences)}
    put(found, {"plane": "file", "path": path})


def sample(
    prompts: list[list[int]], number: int, temperature: float, seed: int, top_p: float = 1.0, top_k: int = 0
) -> list[list[int]]:
    """Return tokens drawn from the model, for each prompt by steps that keep keys and values."""
    checked(prompts, STATE["vocabulary"])
    drawn = []
    for place, prompt in enumerate(prompts):
        die = torch.Generator().manual_seed(seed * 1_000_003 + place)
        tokens, past, found = torch.tensor([prompt], device=STATE["device"]), None, []
        with torch.no_grad():
            for _ in range(number):
                said = STATE["model"](tokens, past_key_values=past, use_cache=True)
                past = said.past_key_values
                found.append(chosen(said.logits[0, -1], temperature, die, top_p, top_k))
                tokens = torch.tensor([[found[-1]]], device=STATE["device"])
        drawn.append(found)
    return drawn


def routes(sequence: list[int]) -> list[list[list[int]]]:
    """Return the experts that every token goes to: layers, tokens, choices; [] for a model that has none."""
    checked([sequence], STATE["vocabulary"])
    top = getattr(STATE["model"].config, "num_experts_per_tok", None)
    if not top:
        return []
    tokens = torch.tensor([sequence], device=STATE["device"])
    with torch.no_grad():
        layers = STATE["model"](tokens, use_cache=False, output_router_logits=True).router_logits or ()
    return [logits.view(len(sequence), -1).topk(top, -1).indices.tolist() for logits in layers]


def capture(tokens: list[int], path: str) -> list[dict[str, Any]]:
    """Keep what every module gives out in a forward, in a file."""
    checked([tokens], STATE["vocabulary"])
    with torch.no_grad(), listening([*taps(STATE["model"])], len(tokens)) as captured:
        _logits(tokens)
    return [put_captured(captured, path)]


def greedy(tokens: list[int], number: int) -> list[int]:
    """Return the tokens that greedy decoding adds, each by a forward over all before it."""
    sequence = list(tokens)
    checked([sequence], STATE["vocabulary"])
    with torch.no_grad():
        for _ in range(number):
            sequence.append(int(_logits(sequence)[-1].argmax()))
    return sequence[len(tokens) :]


def step(sequences: list[list[int]], seed: int, rate: float) -> dict[str, Any]:
    """Take a step of Adam; its moments and, for bfloat16, the weights it adds to are float32."""
    checked(sequences, STATE["vocabulary"], 2)
    model = STATE["model"]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    if STATE["optimizer"] is None:
        STATE["master"] = [weight.detach().float().clone() for weight in trained]
        STATE["optimizer"] = torch.optim.AdamW(STATE["master"], lr=1.0, weight_decay=DECAY, eps=EPSILON)
    optimizer = STATE["optimizer"]
    number = sum(len(sequence) - 1 for sequence in sequences)
    sums = [torch.zeros_like(master) for master in STATE["master"]]
    scores = []
    for sequence, counts in zip(sequences, token_weights(sequences, seed), strict=True):
        logprobs = _logprobs(sequence)
        scores.append(logprobs.tolist())
        model.zero_grad(set_to_none=True)
        (-(logprobs * counts.to(logprobs.device)).sum()).backward()
        for total, weight in zip(sums, trained, strict=True):
            if weight.grad is not None:  # an expert that no token went to has none
                total += weight.grad.float()
    model.zero_grad(set_to_none=True)
    for master, total in zip(STATE["master"], sums, strict=True):
        master.grad = total / number
    norm = torch.linalg.vector_norm(torch.stack([master.grad.norm() for master in STATE["master"]]))
    if not torch.isfinite(norm):
        raise ArithmeticError("the gradient is not finite")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    same = []
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    with torch.no_grad():
        for name, weight, master in zip(names, trained, STATE["master"], strict=True):
            new = master.to(weight.dtype)
            if torch.equal(new, weight):
                same.append(name)
            weight.copy_(new)
    return {"scores": scores, "grad_norm": float(norm), "unchanged": same}


def perturb(scale: float, seed: int) -> None:
    """Multiply every weight by 1 + scale × noise."""
    _write({name: shaken(weight, scale, noise(name, weight.shape, seed)) for name, weight in _stream()})
    if STATE["optimizer"] is not None:
        trained = [weight for weight in STATE["model"].parameters() if weight.requires_grad]
        with torch.no_grad():
            for master, weight in zip(STATE["master"], trained, strict=True):
                master.copy_(weight)


def export(buckets: list[list[int]], addresses: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Put all weights on the plane and return the parcels."""
    stream = _stream()
    parcels = []
    for (begin, end), address in zip(buckets, addresses, strict=True):
        parcels.append(put(dict(next(stream) for _ in range(begin, end)), address))
    return parcels


def send(group: dict[str, Any]) -> None:
    """Broadcast all weights as rank 0 of a process group (see communicator.py)."""
    communicator.send(group, _stream())


def lend(gpus: list[str]) -> list[dict[str, Any]]:
    """Lend all weights to an engine on these GPUs, and say how each is borrowed (see ipc.py)."""
    reclaim()
    STATE["lent"] = ipc.Lent(gpus)
    return STATE["lent"].all(_stream())  # type: ignore[no-any-return]


def reclaim() -> None:
    """Take back what is lent."""
    if (lent := STATE.pop("lent", None)) is not None:
        lent.close()


def digests() -> dict[str, str]:
    """Return the digest of every exported weight."""
    stream = dict(_stream())
    return dict(zip(stream, digest_all(list(stream.values()))))


def replicas() -> list[str]:
    """There is one process, so no copies can differ."""
    return []


def _logits(sequence: list[int]) -> Any:
    """Return logits [tokens, vocabulary], in the dtype in which the head computes."""
    model = STATE["model"]
    wanted = "sdpa" if len(sequence) > LONG and getattr(model, "_supports_sdpa", False) else "eager"
    if model.config._attn_implementation != wanted:
        model.set_attn_implementation(wanted)
    return model(torch.tensor([sequence], device=STATE["device"]), use_cache=False).logits[0]


def _logprobs(sequence: list[int], temperature: float = 1.0) -> Any:
    logits = _logits(sequence)[:-1]
    targets = torch.tensor(sequence[1:], device=logits.device)[:, None]
    parts = zip(logits.split(ROWS), targets.split(ROWS), strict=True)
    return torch.cat([(rows.float() / temperature).log_softmax(-1).gather(-1, ids).squeeze(-1) for rows, ids in parts])


def _state() -> dict[str, Any]:
    """Return the model's weights under its own names, tied ones once."""
    model = STATE["model"]
    tied = getattr(model, "all_tied_weights_keys", {})
    return {name: weight.detach() for name, weight in model.state_dict().items() if name not in tied}


def _stream() -> Iterator[tuple[str, Any]]:
    """Yield every weight under the name that a checkpoint gives it: what `save_pretrained` would write.

    transformers 5 holds experts in one tensor and takes them apart to save them.
    """
    yield from revert_weight_conversion(STATE["model"], _state()).items()


def _write(changed: dict[str, Any]) -> None:
    """Write weights under the names that a checkpoint gives them into the model, in place.

    Where `_stream` yields a view, that is enough. Else its own conversion says where: it is asked to convert numbered
    places instead of weights.
    """
    own = _state()
    views = {weight.untyped_storage().data_ptr() for weight in own.values()}
    rest = {}
    for name, weight in _stream():
        if weight.untyped_storage().data_ptr() in views:
            weight.copy_(changed[name])
        else:
            rest[name] = changed[name]
    if not rest:
        return
    places, begins, total = {}, [], 0
    for name, weight in own.items():
        begins.append(total)
        places[name] = torch.arange(total, total + weight.numel()).view(weight.shape)
        total += weight.numel()
    flat = [weight.view(-1) for weight in own.values()]
    starts = torch.tensor(begins)
    for name, where in revert_weight_conversion(STATE["model"], places).items():
        if name in rest:
            holder = int(torch.bucketize(where.min(), starts, right=True)) - 1
            flat[holder][(where - starts[holder]).view(-1).to(flat[holder].device)] = rest[name].reshape(-1)


VERBS = {
    "load": load,
    "score": score,
    "padded": together,
    "full": full,
    "sample": sample,
    "routes": routes,
    "capture": capture,
    "greedy": greedy,
    "step": step,
    "perturb": perturb,
    "export": export,
    "send": send,
    "unique_id": communicator.unique_id,
    "lend": lend,
    "reclaim": reclaim,
    "digests": digests,
    "replicas": replicas,
}
