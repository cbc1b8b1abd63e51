"""The functions of the transformers trainer, one process: the reference, and a trainer for any causal model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.core_model_loading import revert_weight_conversion

from . import (
    communicator,
    ipc,
    scoring,
    vector_math,  # noqa: F401
)
from .capture import capture_modules, write_capture
from .hf_hooks import model_hooks
from .perturb import ADAM_EPSILON, WEIGHT_DECAY, apply_noise, noise, token_weights
from .sampling import sample_token, upcast_head
from .scoring import check_sequences
from .shard_digest import digest, sum_pieces, sum_shard
from .shard_digest import digests as digest_all
from .tensor_files import write_tensors

STATE: dict[str, Any] = {}
MAX_EAGER_TOKENS = 2048
"""Longer sequences use SDPA: the scores of eager attention take memory quadratic in the tokens."""
ROWS = 1024
"""Tokens whose logits are converted to float32 at a time."""


def load(folder: str, dtype: str, head_fp32: bool, device: str = "auto") -> dict[str, Any]:
    """Load a checkpoint. Returns versions, GPUs, and the name and shape of every exported weight.

    device: cpu, cuda, or auto (a GPU if there is one). Raises RuntimeError for cuda without a GPU.
    """
    STATE.clear()
    transformers.logging.set_verbosity_error()
    use_gpu = device != "cpu" and torch.cuda.is_available()
    if device == "cuda" and not use_gpu:
        raise RuntimeError(f"torch {torch.__version__} sees no GPU")
    target = torch.device("cuda", torch.cuda.current_device()) if use_gpu else torch.device("cpu")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = AutoConfig.from_pretrained(folder)
    is_causal = type(config) in AutoModelForCausalLM._model_mapping
    model = (AutoModelForCausalLM if is_causal else AutoModelForImageTextToText).from_pretrained(
        folder, config=config, dtype=getattr(torch, dtype), attn_implementation="eager"
    )
    STATE.update(model=model.to(target).eval(), device=target, optimizer=None, master=[])
    if head_fp32:
        upcast_head(model.get_output_embeddings())
    STATE["vocabulary"] = model.get_input_embeddings().weight.shape[0]
    plan = [{"name": name, "shape": [*weight.shape]} for name, weight in _stream()]
    gpus = {
        "gpus": [ipc.gpu_uuid(target.index)] if use_gpu else [],
        "sees": list(ipc.visible_gpus()) if use_gpu else [],
        "nccl": ipc.nccl_version() if use_gpu else "",
    }
    return {"version": transformers.__version__, "torch": torch.__version__, "plan": plan, **gpus}


def score(sequences: list[list[int]], temperature: float) -> list[list[float]]:
    """Return the logprob of each token after the first, from one forward for each sequence."""
    check_sequences(sequences, STATE["vocabulary"])
    with torch.no_grad():
        return [_logprobs(sequence, temperature).tolist() for sequence in sequences]


def score_batched(sequences: list[list[int]], temperature: float) -> list[list[float]]:
    """Return the same from one forward over all sequences, padded to the longest."""
    check_sequences(sequences, STATE["vocabulary"])
    return scoring.score_batched(STATE["model"], sequences, STATE["device"], temperature)


def score_full_vocab(sequences: list[list[int]], path: str, raw: bool = False) -> None:
    """Write the logprobs of the whole vocabulary after each token but the last: "0" [tokens - 1, vocabulary], …; raw: logits."""
    check_sequences(sequences, STATE["vocabulary"])
    with torch.no_grad():
        logits = {str(n): _logits(tokens)[:-1].float() for n, tokens in enumerate(sequences)}
        tables = logits if raw else {name: table.log_softmax(-1) for name, table in logits.items()}
    write_tensors(tables, {"kind": "file", "path": path})


def sample(
    prompts: list[list[int]], number: int, temperature: float, seed: int, top_p: float = 1.0, top_k: int = 0
) -> list[list[int]]:
    """Return sampled tokens for each prompt, by decode steps with a KV cache."""
    check_sequences(prompts, STATE["vocabulary"])
    responses = []
    for place, prompt in enumerate(prompts):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + place)
        inputs, cache, response = torch.tensor([prompt], device=STATE["device"]), None, []
        with torch.no_grad():
            for _ in range(number):
                output = STATE["model"](inputs, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                response.append(sample_token(output.logits[0, -1], temperature, generator, top_p, top_k))
                inputs = torch.tensor([[response[-1]]], device=STATE["device"])
        responses.append(response)
    return responses


def expert_routing(sequence: list[int]) -> list[list[list[int]]]:
    """Return the experts of every token as [layer][token][choice]; [] for a model without experts."""
    check_sequences([sequence], STATE["vocabulary"])
    top = getattr(STATE["model"].config, "num_experts_per_tok", None)
    if not top:
        return []
    tokens = torch.tensor([sequence], device=STATE["device"])
    with torch.no_grad():
        layers = STATE["model"](tokens, use_cache=False, output_router_logits=True).router_logits or ()
    return [logits.view(len(sequence), -1).topk(top, -1).indices.tolist() for logits in layers]


def capture_activations(tokens: list[int], path: str) -> list[dict[str, Any]]:
    """Write the activations of every module in one forward to a file."""
    check_sequences([tokens], STATE["vocabulary"])
    with torch.no_grad(), capture_modules([*model_hooks(STATE["model"])], len(tokens)) as capture_result:
        _logits(tokens)
    return [write_capture(capture_result, path)]


def decode_greedy(tokens: list[int], number: int) -> list[int]:
    """Return the tokens that greedy decoding adds, each from a forward over all earlier tokens."""
    sequence = list(tokens)
    check_sequences([sequence], STATE["vocabulary"])
    with torch.no_grad():
        for _ in range(number):
            sequence.append(int(_logits(sequence)[-1].argmax()))
    return sequence[len(tokens) :]


def step(sequences: list[list[int]], seed: int, rate: float) -> dict[str, Any]:
    """Take a step of Adam; its moments are float32, and for bfloat16 so are the master weights that it updates."""
    check_sequences(sequences, STATE["vocabulary"], 2)
    model = STATE["model"]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    if STATE["optimizer"] is None:
        STATE["master"] = [weight.detach().float().clone() for weight in trained]
        STATE["optimizer"] = torch.optim.AdamW(STATE["master"], lr=1.0, weight_decay=WEIGHT_DECAY, eps=ADAM_EPSILON)
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
            if weight.grad is not None:  # None for an expert without tokens
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
    unchanged = []
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    with torch.no_grad():
        for name, weight, master in zip(names, trained, STATE["master"], strict=True):
            new = master.to(weight.dtype)
            if torch.equal(new, weight):
                unchanged.append(name)
            weight.copy_(new)
    return {"scores": scores, "grad_norm": float(norm), "unchanged": unchanged}


def perturb(scale: float, seed: int) -> None:
    """Multiply every weight by 1 + scale × noise."""
    _write({name: apply_noise(weight, scale, noise(name, weight.shape, seed)) for name, weight in _stream()})
    if STATE["optimizer"] is not None:
        trained = [weight for weight in STATE["model"].parameters() if weight.requires_grad]
        with torch.no_grad():
            for master, weight in zip(STATE["master"], trained, strict=True):
                master.copy_(weight)


def export(buckets: list[list[int]], addresses: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Write all weights to files and return the files."""
    stream = _stream()
    files = []
    for (begin, end), address in zip(buckets, addresses, strict=True):
        files.append(write_tensors(dict(next(stream) for _ in range(begin, end)), address))
    return files


def send(group: dict[str, Any]) -> None:
    """Broadcast all weights as rank 0 of a process group (see communicator.py)."""
    communicator.send_weights(group, _stream())


def share_ipc(gpus: list[str]) -> list[dict[str, Any]]:
    """Share all weights with an engine on these GPUs, and return their handles (see ipc.py)."""
    release_ipc()
    STATE["ipc_share"] = ipc.IpcShare(gpus)
    return STATE["ipc_share"].share_all(_stream())  # type: ignore[no-any-return]


def release_ipc() -> None:
    """Release the shared memory."""
    if (share := STATE.pop("ipc_share", None)) is not None:
        share.close()


def digests() -> dict[str, str]:
    """Return the digest of every exported weight."""
    stream = dict(_stream())
    return dict(zip(stream, digest_all(list(stream.values()))))


def shard_digests(pieces: dict[str, list[Any]] | None = None) -> list[dict[str, Any]]:
    """Return, for each exported weight, the digest from the model's own parameters and the digest of the export.

    pieces: weight that joins several → its pieces, as `shard_digest.sum_pieces` takes them.
    """
    model = STATE["model"]
    tied = getattr(model, "all_tied_weights_keys", {})
    own = {name: weight.detach() for name, weight in model.named_parameters(remove_duplicate=False) if name not in tied}
    exported = dict(_stream())
    held = {
        name: weight for name, weight in revert_weight_conversion(model, own).items() if name in own or name in exported
    }
    return [
        {
            "name": name,
            "axis": 0,
            "begin": 0,
            "end": len(weight) if weight.dim() else 1,
            "own": name,
            "rank": 0,
            "held": digest(weight),
            "sums": sum_shard(weight).tolist(),
            "pieces": [sums.tolist() for sums in sum_pieces(weight, (pieces or {}).get(name, ()))],
            "exported": digest(exported[name]) if name in exported else "",
        }
        for name, weight in held.items()
    ]


def mismatched_replicas() -> list[dict[str, Any]]:
    """Return []: one process has no replicas."""
    return []


def _logits(sequence: list[int]) -> Any:
    """Return logits [tokens, vocabulary], in the dtype of the head."""
    model = STATE["model"]
    implementation = "sdpa" if len(sequence) > MAX_EAGER_TOKENS and getattr(model, "_supports_sdpa", False) else "eager"
    if model.config._attn_implementation != implementation:
        model.set_attn_implementation(implementation)
    return model(torch.tensor([sequence], device=STATE["device"]), use_cache=False).logits[0]


def _logprobs(sequence: list[int], temperature: float = 1.0) -> Any:
    logits = _logits(sequence)[:-1]
    targets = torch.tensor(sequence[1:], device=logits.device)[:, None]
    parts = zip(logits.split(ROWS), targets.split(ROWS), strict=True)
    return torch.cat([(rows.float() / temperature).log_softmax(-1).gather(-1, ids).squeeze(-1) for rows, ids in parts])


def _state() -> dict[str, Any]:
    """Return the model's weights under its own names, tied weights once."""
    model = STATE["model"]
    tied = getattr(model, "all_tied_weights_keys", {})
    return {name: weight.detach() for name, weight in model.state_dict().items() if name not in tied}


def _stream() -> Iterator[tuple[str, Any]]:
    """Yield every weight under its checkpoint name, as `save_pretrained` would write it.

    transformers 5 keeps all experts in one tensor and splits it when it saves.
    """
    yield from revert_weight_conversion(STATE["model"], _state()).items()


def _write(changed: dict[str, Any]) -> None:
    """Write weights, given under their checkpoint names, into the model in place.

    Where `_stream` yields a view of a parameter, writing to the view is enough. For the others, transformers' own conversion
    shows which elements they come from: it converts tensors of element positions instead of weights.
    """
    own = _state()
    storages = {weight.untyped_storage().data_ptr() for weight in own.values()}
    copies = {}
    for name, weight in _stream():
        if weight.untyped_storage().data_ptr() in storages:
            weight.copy_(changed[name])
        else:
            copies[name] = changed[name]
    if not copies:
        return
    positions, begins, total = {}, [], 0
    for name, weight in own.items():
        begins.append(total)
        positions[name] = torch.arange(total, total + weight.numel()).view(weight.shape)
        total += weight.numel()
    flat = [weight.view(-1) for weight in own.values()]
    starts = torch.tensor(begins)
    for name, where in revert_weight_conversion(STATE["model"], positions).items():
        if name in copies:
            owner = int(torch.bucketize(where.min(), starts, right=True)) - 1
            flat[owner][(where - starts[owner]).view(-1).to(flat[owner].device)] = copies[name].reshape(-1)


RPC_METHODS = {
    "load": load,
    "score": score,
    "score_batched": score_batched,
    "score_full_vocab": score_full_vocab,
    "sample": sample,
    "expert_routing": expert_routing,
    "capture_activations": capture_activations,
    "decode_greedy": decode_greedy,
    "step": step,
    "perturb": perturb,
    "export": export,
    "send": send,
    "nccl_unique_id": communicator.unique_id,
    "share_ipc": share_ipc,
    "release_ipc": release_ipc,
    "digests": digests,
    "shard_digests": shard_digests,
    "mismatched_replicas": mismatched_replicas,
}
