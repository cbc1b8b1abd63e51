"""One rank of the Megatron trainer. Every rank gets the same calls in the same order; rank 0 gathers the exported weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import (
    communicator,
    ipc,
    vector_math,  # noqa: F401
)
from . import megatron_layout as layouts
from . import megatron_schedule as schedule
from .capture import capture_modules, write_capture
from .megatron_checkpoint import save_checkpoint as save_megatron_checkpoint
from .megatron_device import join_process_group
from .megatron_hooks import model_hooks
from .megatron_model import RankParameter, build, rank_parameters
from .megatron_optimizer import MegatronOptimizer
from .megatron_pieces import Piece, digest_pieces, digest_range, locate_pieces
from .perturb import apply_noise, noise, token_weights
from .sampling import sample_token
from .shard_digest import digest
from .tensor_files import write_tensors

VOCABULARY_NAMES = ("embedding.word_embeddings.weight", "output_layer.weight")


class Rank:
    """A rank's part of a model. plan: which rank holds which part of every weight of the model (see `megatron_trainer`)."""

    def __init__(self, rank: int, world: int, store_file: str, settings: dict[str, Any]) -> None:
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        self.rank = rank
        self.settings = settings
        layout = settings["layout"]
        self.device = join_process_group(rank, world, store_file, settings["gpus"])
        self.ipc_share: ipc.IpcShare | None = None
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout["tp"],
            pipeline_model_parallel_size=layout["pp"],
            expert_model_parallel_size=layout["ep"],
            expert_tensor_parallel_size=layout["etp"],
        )
        model_parallel_cuda_manual_seed(1)
        self.model = build(settings).to(self.device)
        self.parameters: dict[str, RankParameter] = {
            parameter.name: parameter for parameter in rank_parameters(self.model, settings)
        }
        self.plan: list[dict[str, Any]] = []
        self.pieces: dict[str, list[Piece]] = {}
        self.optimizer: MegatronOptimizer | None = None

    def describe_parameters(self) -> list[dict[str, Any]]:
        """Describe the parameters of this rank."""
        return [parameter.describe() for parameter in self.parameters.values()]

    def set_plan(self, plan: list[dict[str, Any]]) -> None:
        """Set the plan of the whole model."""
        self.plan = plan

    def load(self, files: dict[str, str]) -> None:
        """Read the weights of this rank. files: Hugging Face name → safetensors file."""
        from safetensors import safe_open

        opened: dict[str, Any] = {}

        def read(name: str) -> Any:
            file = files[name]
            if file not in opened:
                opened[file] = safe_open(file, framework="pt")
            return opened[file].get_tensor(name)

        with torch.no_grad():
            for weight in self.plan:
                for parameter in self._own_parameters(weight):
                    whole = self._build_whole(weight, [read(part["name"]) for part in weight["parts"]])
                    parameter.weight.copy_(self._own_shard(parameter, weight, whole))
                    self.pieces[parameter.name] = self._locate_pieces(parameter, weight)

    def score(self, sequences: list[list[int]], temperature: float) -> dict[str, list[float]]:
        """Return, on the last stage, sequence number → logprob of each token after the first."""
        logprobs = self._forward(sequences, temperature=temperature)
        return {str(number): values.tolist() for number, values in logprobs.items()}

    def write_full_vocab(self, sequences: list[list[int]], path: str) -> list[str]:
        """Write, on the last stage, one file for each sequence, and return the sequence numbers."""
        logprobs = self._forward(sequences, full=True)
        # the other tensor-parallel ranks compute the same logprobs
        if any(parameter.part for parameter in self.parameters.values()):
            return []
        for number, table in logprobs.items():
            write_tensors({str(number): table}, {"kind": "file", "path": f"{path}.{number}"})
        return [str(number) for number in logprobs]

    def next_tokens(
        self, sequences: list[list[int]], temperature: float, seed: int, top_p: float, top_k: int
    ) -> dict[str, int]:
        """Return, on the last stage, sequence number → its sampled token, the same on all ranks that compute the sequence."""
        last_logits = self._forward(sequences, last_only=True)
        sampled = {}
        for number, logits in last_logits.items():
            generator = torch.Generator().manual_seed((seed * 1_000_003 + number) * 1_000_003 + len(sequences[number]))
            sampled[str(number)] = sample_token(logits, temperature, generator, top_p, top_k)
        return sampled

    def expert_routing(self, sequence: list[int]) -> dict[str, list[list[int]]]:
        """Return layer number → the experts of every token, for the layers of this rank.

        Under sequence parallelism a rank sees only its share of the tokens, so it returns nothing.
        """
        experts: dict[str, list[list[int]]] = {}
        handles = []
        for layer in self.model.decoder.layers if not self.model.config.sequence_parallel else ():
            router = getattr(layer.mlp, "router", None)
            if router is not None:

                def record(_: Any, __: Any, output: Any, name: str = str(layer.layer_number - 1)) -> None:
                    experts[name] = [row.nonzero().flatten().tolist() for row in output[1]]

                handles.append(router.register_forward_hook(record))
        self._forward([sequence])
        for handle in handles:
            handle.remove()
        return experts

    def _forward(self, sequences: Sequence[Sequence[int]], **options: Any) -> Any:
        return schedule.run_schedule(
            self.model, self._batches(sequences), self.settings["vocabulary"], train=False, **options
        )

    def capture_activations(self, tokens: list[int], path: str) -> dict[str, Any]:
        """Write the activations of this rank's modules in one forward to a file."""
        with capture_modules([*model_hooks(self.model, self.settings)], len(tokens)) as capture:
            schedule.run_schedule(self.model, self._batches([tokens]), self.settings["vocabulary"], train=False)
        return write_capture(capture, f"{path}.{self.rank}")

    def step(self, sequences: list[list[int]], seed: int, rate: float) -> dict[str, Any]:
        """Take an optimizer step; return the gradient norm and, on the last stage, the logprobs of its forward."""
        if self.optimizer is None:
            self.optimizer = MegatronOptimizer(self.model, self.settings["dtype"] == "bfloat16")
        before = {name: parameter.weight.detach().clone() for name, parameter in self.parameters.items()}
        self.optimizer.zero_gradients()
        batches = self._batches(sequences, token_weights(sequences, seed))
        logprobs = schedule.run_schedule(self.optimizer.model, batches, self.settings["vocabulary"], train=True)
        norm = self.optimizer.apply_gradients(rate)
        unchanged = [name for name, parameter in self.parameters.items() if torch.equal(before[name], parameter.weight)]
        return {
            "norm": norm,
            "scores": {str(number): values.tolist() for number, values in logprobs.items()},
            "unchanged": unchanged,
        }

    def perturb(self, scale: float, seed: int) -> None:
        """Multiply every weight by 1 + scale × noise."""
        with torch.no_grad():
            for weight in self.plan:
                for parameter in self._own_parameters(weight):
                    parts_noise = [noise(part["name"], part["shape"], seed) for part in weight["parts"]]
                    whole = self._own_shard(parameter, weight, self._build_whole(weight, parts_noise))
                    parameter.weight.copy_(apply_noise(parameter.weight, scale, whole))
        if self.optimizer is not None:
            self.optimizer.reload_weights()

    def export(self, buckets: list[list[int]], addresses: list[dict[str, str]]) -> list[dict[str, Any]] | None:
        """Write all weights to files. buckets: [begin, end) of the exported weights. Returns the written files on rank 0."""
        stream = self.stream()
        files = []
        for (begin, end), address in zip(buckets, addresses, strict=True):
            tensors = dict(next(stream) for _ in range(begin, end))
            if self.rank == 0:
                files.append(write_tensors(tensors, address))
        for _ in stream:
            raise RuntimeError("the buckets do not cover all weights")
        return files if self.rank == 0 else None

    def digests(self) -> dict[str, str] | None:
        """Return the digest of every exported weight on rank 0, one weight in memory at a time."""
        digests = {name: digest(tensor) for name, tensor in self.stream() if self.rank == 0}
        return digests if self.rank == 0 else None

    def parameter_digests(self) -> dict[str, str]:
        """Return the digest of each parameter of this rank, to compare it with replicas on other ranks."""
        return {name: digest(parameter.weight.detach()) for name, parameter in self.parameters.items()}

    def digest_pieces(self) -> list[dict[str, Any]]:
        """Return this rank's piece of each checkpoint tensor: its place there, Megatron's name, its digest and sums."""
        shapes = {part["name"]: part["shape"] for weight in self.plan for part in weight["parts"]}
        return [
            piece
            for name, parameter in self.parameters.items()
            for piece in digest_pieces(name, parameter.weight, self.pieces.get(name, ()), shapes)
        ]

    def digest_exported_pieces(self, pieces: list[dict[str, Any]]) -> list[str] | None:
        """Export all weights, and return the digests of these ranges on rank 0; "" for a range that is not exported."""
        wanted: dict[str, list[int]] = {}
        for number, piece in enumerate(pieces):
            wanted.setdefault(piece["name"], []).append(number)
        digests = [""] * len(pieces)
        for name, tensor in self.stream():
            for number in wanted.get(name, ()) if self.rank == 0 else ():
                digests[number] = digest_range(tensor, pieces[number])
        return digests if self.rank == 0 else None

    def gpu_uuid(self) -> str:
        """Return the UUID of this rank's GPU, "" on a CPU."""
        return ipc.gpu_uuid(self.device.index) if self.device.type == "cuda" else ""

    def visible_gpus(self) -> list[str]:
        """Return the UUIDs of the GPUs with which this rank can share memory."""
        return list(ipc.visible_gpus()) if self.device.type == "cuda" else []

    def nccl_unique_id(self) -> str | None:
        """Return the id of an NCCL group whose rank 0 is rank 0 of the trainer."""
        return communicator.unique_id() if self.rank == 0 else None

    def send(self, group: dict[str, Any]) -> None:
        """Broadcast all weights to an engine; rank 0 is rank 0 of the group, and the other ranks send it their shards."""
        if self.rank == 0:
            communicator.send_weights(group, self.stream())
        else:
            for _ in self.stream():
                pass

    def share_ipc(self, gpus: list[str]) -> list[dict[str, Any]] | None:
        """Share all weights with an engine on these GPUs; rank 0 shares, and the other ranks send it their shards."""
        self.release_ipc()
        if self.rank:
            for _ in self.stream():
                pass
            return None
        self.ipc_share = ipc.IpcShare(gpus)
        return self.ipc_share.share_all(self.stream())

    def release_ipc(self) -> None:
        """Release the shared memory."""
        if self.ipc_share is not None:
            self.ipc_share.close()
            self.ipc_share = None

    def save_checkpoint(self, folder: str) -> None:
        """Write the part of this rank in a torch_dist checkpoint."""
        save_megatron_checkpoint(self.model, self.settings, folder)

    def stream(self) -> Iterator[tuple[str, Any]]:
        """Yield every weight in Hugging Face form, in the order of export: the whole tensor on rank 0, None on the others.

        All ranks must iterate together: a rank sends its shard to rank 0 when the weight's turn comes.
        """
        import torch.distributed as dist

        for weight in self.plan:
            shards = []
            for rank, shape in zip(weight["ranks"], weight["shapes"], strict=True):
                if self.rank == rank:
                    own = self.parameters[weight["own"]].weight.detach().contiguous()
                    if rank:
                        dist.send(own.view(-1).view(torch.uint8), 0)
                    else:
                        shards.append(own)
                elif self.rank == 0:
                    received = torch.empty(shape, dtype=getattr(torch, self.settings["dtype"]), device=self.device)
                    dist.recv(received.view(-1).view(torch.uint8), rank)
                    shards.append(received)
            if self.rank:
                yield from ((part["name"], None) for part in weight["parts"])
                continue
            whole = layouts.unshard(shards, weight["layout"], weight["axis"])
            if weight["own"] in VOCABULARY_NAMES:
                whole = whole[: self.settings["vocabulary"]]
            config = self.settings["config"]
            parts = layouts.to_hugging_face(weight["layout"], whole, config["num_query_groups"], config["kv_channels"])
            yield from zip((part["name"] for part in weight["parts"]), parts, strict=True)

    def _own_parameters(self, weight: dict[str, Any]) -> Iterator[RankParameter]:
        """Yield this rank's parameters of a weight: a tied head on the last stage is a second parameter of the embedding."""
        names = [weight["own"]]
        if self.settings["tied"] and weight["own"] == VOCABULARY_NAMES[0]:
            names.append(VOCABULARY_NAMES[1])
        yield from (self.parameters[name] for name in names if name in self.parameters)

    def _build_whole(self, weight: dict[str, Any], parts: Sequence[Any]) -> Any:
        whole = layouts.to_megatron(weight["layout"], parts, self.settings["config"]["num_query_groups"])
        return (
            layouts.pad_rows(whole, self.settings["padded_vocabulary"]) if weight["own"] in VOCABULARY_NAMES else whole
        )

    def _own_shard(self, parameter: RankParameter, weight: dict[str, Any], whole: Any) -> Any:
        return layouts.shard(whole, weight["layout"], parameter.axis, parameter.part, parameter.parts)

    def _locate_pieces(self, parameter: RankParameter, weight: dict[str, Any]) -> list[Piece]:
        rows = self.settings["padded_vocabulary"] if weight["own"] in VOCABULARY_NAMES else 0
        groups = self.settings["config"]["num_query_groups"]
        return locate_pieces(weight, parameter.axis, parameter.part, parameter.parts, groups, rows)

    def _batches(
        self, sequences: Sequence[Sequence[int]], weights: Sequence[Any] | None = None
    ) -> list[dict[str, Any]]:
        config = self.model.config
        multiple = config.tensor_model_parallel_size if config.sequence_parallel else 1
        batches: list[dict[str, Any]] = schedule.make_microbatches(sequences, multiple, weights)
        return batches
