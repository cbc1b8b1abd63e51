"""What a rank of the trainer does. Every rank is asked the same, in the same order; rank 0 holds what leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import communicator, ipc
from . import megatron_layout as layouts
from . import megatron_schedule as schedule
from .capture import listening
from .capture import put as put_captured
from .change import noise, shaken, token_weights
from .digest import digest
from .drawing import chosen
from .megatron_checkpoint import save
from .megatron_device import join
from .megatron_learning import Learning
from .megatron_model import Piece, build, pieces
from .megatron_taps import taps
from .plane import put

VOCABULARY_NAMES = ("embedding.word_embeddings.weight", "output_layer.weight")


class Rank:
    """A part of a model. plan: of every weight of the whole model, who holds which part (see `megatron_trainer`)."""

    def __init__(self, rank: int, world: int, meeting: str, settings: dict[str, Any]) -> None:
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        self.rank = rank
        self.settings = settings
        layout = settings["layout"]
        self.device = join(rank, world, meeting, settings["gpus"])
        self.lent: ipc.Lent | None = None
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout["tp"],
            pipeline_model_parallel_size=layout["pp"],
            expert_model_parallel_size=layout["ep"],
            expert_tensor_parallel_size=layout["etp"],
        )
        model_parallel_cuda_manual_seed(1)
        self.model = build(settings).to(self.device)
        self.pieces: dict[str, Piece] = {piece.name: piece for piece in pieces(self.model, settings)}
        self.plan: list[dict[str, Any]] = []
        self.learning: Learning | None = None

    def parts(self) -> list[dict[str, Any]]:
        """Tell what this rank holds."""
        return [piece.told() for piece in self.pieces.values()]

    def follow(self, plan: list[dict[str, Any]]) -> None:
        """Take the plan of the whole model."""
        self.plan = plan

    def load(self, files: dict[str, str]) -> None:
        """Read this rank's part. files: Hugging Face name → safetensors file."""
        from safetensors import safe_open

        opened: dict[str, Any] = {}

        def read(name: str) -> Any:
            file = files[name]
            if file not in opened:
                opened[file] = safe_open(file, framework="pt")
            return opened[file].get_tensor(name)

        with torch.no_grad():
            for weight in self.plan:
                for piece in self._held(weight):
                    whole = self._assembled(weight, [read(part["name"]) for part in weight["parts"]])
                    piece.weight.copy_(self._own(piece, weight, whole))

    def score(self, sequences: list[list[int]], temperature: float) -> dict[str, list[float]]:
        """Return, on the last stage, number of the sequence → logprob of each token after the first."""
        found = self._run(sequences, temperature=temperature)
        return {str(number): values.tolist() for number, values in found.items()}

    def full(self, sequences: list[list[int]], path: str) -> list[str]:
        """Write, on the last stage, a file for each sequence, and return their numbers."""
        found = self._run(sequences, full=True)
        if any(piece.part for piece in self.pieces.values()):  # tensor-parallel ranks hold the same
            return []
        for number, table in found.items():
            put({str(number): table}, {"plane": "file", "path": f"{path}.{number}"})
        return [str(number) for number in found]

    def next_tokens(
        self, sequences: list[list[int]], temperature: float, seed: int, top_p: float, top_k: int
    ) -> dict[str, int]:
        """Return, on the last stage, number of the sequence → a token drawn for it, the same on all ranks that hold it."""
        found = self._run(sequences, last_only=True)
        drawn = {}
        for number, logits in found.items():
            die = torch.Generator().manual_seed((seed * 1_000_003 + number) * 1_000_003 + len(sequences[number]))
            drawn[str(number)] = chosen(logits, temperature, die, top_p, top_k)
        return drawn

    def routes(self, sequence: list[int]) -> dict[str, list[list[int]]]:
        """Return number of the layer → the experts that every token went to, of the layers that this rank holds.

        Ranks that share the tokens of a sequence (sequence parallelism) tell of their share alone, so nothing is told there.
        """
        seen: dict[str, list[list[int]]] = {}
        handles = []
        for layer in self.model.decoder.layers if not self.model.config.sequence_parallel else ():
            router = getattr(layer.mlp, "router", None)
            if router is not None:

                def note(_: Any, __: Any, output: Any, name: str = str(layer.layer_number - 1)) -> None:
                    seen[name] = [row.nonzero().flatten().tolist() for row in output[1]]

                handles.append(router.register_forward_hook(note))
        self._run([sequence])
        for handle in handles:
            handle.remove()
        return seen

    def _run(self, sequences: Sequence[Sequence[int]], **how: Any) -> Any:
        return schedule.run(self.model, self._batches(sequences), self.settings["vocabulary"], train=False, **how)

    def capture(self, tokens: list[int], path: str) -> dict[str, Any]:
        """Keep what this rank's modules give out in a forward, in a file."""
        with listening([*taps(self.model, self.settings)], len(tokens)) as captured:
            schedule.run(self.model, self._batches([tokens]), self.settings["vocabulary"], train=False)
        return put_captured(captured, f"{path}.{self.rank}")

    def step(self, sequences: list[list[int]], seed: int, rate: float) -> dict[str, Any]:
        """Take an optimizer step; return the norm of the gradient and, on the last stage, the logprobs of its forward."""
        if self.learning is None:
            self.learning = Learning(self.model, self.settings["dtype"] == "bfloat16")
        before = {name: piece.weight.detach().clone() for name, piece in self.pieces.items()}
        self.learning.begin()
        batches = self._batches(sequences, token_weights(sequences, seed))
        found = schedule.run(self.learning.model, batches, self.settings["vocabulary"], train=True)
        norm = self.learning.end(rate)
        same = [name for name, piece in self.pieces.items() if torch.equal(before[name], piece.weight)]
        return {
            "norm": norm,
            "scores": {str(number): values.tolist() for number, values in found.items()},
            "unchanged": same,
        }

    def perturb(self, scale: float, seed: int) -> None:
        """Multiply every weight by 1 + scale × noise."""
        with torch.no_grad():
            for weight in self.plan:
                for piece in self._held(weight):
                    drawn = [noise(part["name"], part["shape"], seed) for part in weight["parts"]]
                    whole = self._own(piece, weight, self._assembled(weight, drawn))
                    piece.weight.copy_(shaken(piece.weight, scale, whole))
        if self.learning is not None:
            self.learning.reload()

    def export(self, buckets: list[list[int]], addresses: list[dict[str, str]]) -> list[dict[str, Any]] | None:
        """Put all weights on the plane. buckets: [begin, end) of exported weights each. Returns the parcels on rank 0."""
        stream = self.stream()
        parcels = []
        for (begin, end), address in zip(buckets, addresses, strict=True):
            held = dict(next(stream) for _ in range(begin, end))
            if self.rank == 0:
                parcels.append(put(held, address))
        for _ in stream:
            raise RuntimeError("the buckets leave weights behind")
        return parcels if self.rank == 0 else None

    def digests(self) -> dict[str, str] | None:
        """Return the digest of every exported weight on rank 0, one weight in memory at a time."""
        found = {name: digest(tensor) for name, tensor in self.stream() if self.rank == 0}
        return found if self.rank == 0 else None

    def replicas(self) -> dict[str, str]:
        """Return the digest of each parameter of which other ranks hold the same."""
        return {name: digest(piece.weight.detach()) for name, piece in self.pieces.items()}

    def disturb(self, rank: int, name: str) -> None:
        """Change one number of a parameter (Megatron's name) on one rank only: a fault, for tests of what finds it."""
        if self.rank == rank:
            with torch.no_grad():
                self.pieces[name].weight.view(-1)[0] += 1

    def gpu(self) -> str:
        """Return the UUID of this rank's GPU, "" on a CPU."""
        return ipc.uuid(self.device.index) if self.device.type == "cuda" else ""

    def sees(self) -> list[str]:
        """Return the UUIDs of the GPUs that this rank could lend to."""
        return list(ipc.here()) if self.device.type == "cuda" else []

    def unique_id(self) -> str | None:
        """Return the id of an NCCL group of which rank 0 is rank 0."""
        return communicator.unique_id() if self.rank == 0 else None

    def send(self, group: dict[str, Any]) -> None:
        """Broadcast all weights to an engine; rank 0 is rank 0 of the group, and the others hand it their parts."""
        if self.rank == 0:
            communicator.send(group, self.stream())
        else:
            for _ in self.stream():
                pass

    def lend(self, gpus: list[str]) -> list[dict[str, Any]] | None:
        """Lend all weights to an engine on these GPUs; rank 0 lends, and the others hand it their parts."""
        self.reclaim()
        if self.rank:
            for _ in self.stream():
                pass
            return None
        self.lent = ipc.Lent(gpus)
        return self.lent.all(self.stream())

    def reclaim(self) -> None:
        """Take back what is lent."""
        if self.lent is not None:
            self.lent.close()
            self.lent = None

    def checkpoint(self, folder: str) -> None:
        """Write this rank's part of a torch_dist checkpoint."""
        save(self.model, self.settings, folder)

    def stream(self) -> Iterator[tuple[str, Any]]:
        """Yield every weight in Hugging Face form, in the order of export: whole on rank 0, None on the others.

        All ranks have to go through it together: who holds a part sends it to rank 0 when its turn comes.
        """
        import torch.distributed as dist

        for weight in self.plan:
            shards = []
            for rank, shape in zip(weight["ranks"], weight["shapes"], strict=True):
                if self.rank == rank:
                    own = self.pieces[weight["own"]].weight.detach().contiguous()
                    if rank:
                        dist.send(own.view(-1).view(torch.uint8), 0)
                    else:
                        shards.append(own)
                elif self.rank == 0:
                    got = torch.empty(shape, dtype=getattr(torch, self.settings["dtype"]), device=self.device)
                    dist.recv(got.view(-1).view(torch.uint8), rank)
                    shards.append(got)
            if self.rank:
                yield from ((part["name"], None) for part in weight["parts"])
                continue
            whole = layouts.unshard(shards, weight["layout"], weight["axis"])
            if weight["own"] in VOCABULARY_NAMES:
                whole = whole[: self.settings["vocabulary"]]
            config = self.settings["config"]
            cut = layouts.take_apart(weight["layout"], whole, config["num_query_groups"], config["kv_channels"])
            yield from zip((part["name"] for part in weight["parts"]), cut, strict=True)

    def _held(self, weight: dict[str, Any]) -> Iterator[Piece]:
        """Yield this rank's pieces of a weight: the tied head on the last stage is one more of the embedding."""
        names = [weight["own"]]
        if self.settings["tied"] and weight["own"] == VOCABULARY_NAMES[0]:
            names.append(VOCABULARY_NAMES[1])
        yield from (self.pieces[name] for name in names if name in self.pieces)

    def _assembled(self, weight: dict[str, Any], parts: Sequence[Any]) -> Any:
        whole = layouts.assemble(weight["layout"], parts, self.settings["config"]["num_query_groups"])
        return layouts.padded(whole, self.settings["padded_vocabulary"]) if weight["own"] in VOCABULARY_NAMES else whole

    def _own(self, piece: Piece, weight: dict[str, Any], whole: Any) -> Any:
        return layouts.shard(whole, weight["layout"], piece.axis, piece.part, piece.parts)

    def _batches(
        self, sequences: Sequence[Sequence[int]], weights: Sequence[Any] | None = None
    ) -> list[dict[str, Any]]:
        config = self.model.config
        multiple = config.tensor_model_parallel_size if config.sequence_parallel else 1
        shared: list[dict[str, Any]] = schedule.share(sequences, multiple, weights)
        return shared
