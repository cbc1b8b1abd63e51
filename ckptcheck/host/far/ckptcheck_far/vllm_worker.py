"""What ckptcheck adds to every worker of vLLM (``worker_extension_cls``): it looks at the model where it lies.

The methods are called by collective_rpc, so one worker in this process and several in their own are the same. What they
return is plain data. vLLM imports this module in each worker before it loads the model.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from . import capture, hf_taps, marks, plane, tensors, vllm_gloo, vllm_plain
from .digest import digests

vllm_plain.settle()
vllm_gloo.register()

REBUILT = ("W_UK", "W_UK_T", "W_UV", "W_K", "W_V")
"""Derived tensors that vLLM makes anew after every update: the absorbed projections of multi-head latent attention."""

DRAFT = "draft:"
"""Before the names of a draft model's tensors."""
DIGEST = 5
"""Where the digest stands in an entry of the manifest."""


class Extension:
    """Mixed into vLLM's worker class; all names begin with ckptcheck_ for they must not meet its own."""

    rank: int
    model_runner: Any
    vllm_config: Any

    def ckptcheck_manifest(self, seen: bool = True) -> dict[str, Any]:
        """Return [name, kind, dtype, shape, bytes, digest, place, opaque] of every tensor; digests only where `seen`."""
        entries: list[list[Any]] = []
        owners: dict[Any, int] = {}  # aliases share the digest of the first
        digested: list[Any] = []
        for name, kind, tensor, opaque in self._ckptcheck_tensors():
            where = tensors.place(tensor)
            if not hasattr(tensor, "shape"):
                entries.append([name, kind, "", [], 0, "", where, opaque])
                continue
            opaque = "it is on the meta device: it holds no numbers" if tensor.device.type == "meta" else opaque
            nbytes, shape = tensor.numel() * tensor.element_size(), list(tensor.shape)
            entries.append([name, kind, tensors.dtype_name(tensor), shape, nbytes, "", where, opaque])
            if seen and not opaque:
                same = (where or len(entries), tuple(shape), tensor.stride(), tensor.dtype)
                entries[-1][DIGEST] = owners.setdefault(same, len(digested))
                if owners[same] == len(digested):
                    digested.append(tensor)
        values = digests(digested)
        for entry in entries:
            if entry[DIGEST] != "":
                entry[DIGEST] = values[entry[DIGEST]]
        return {"rank": self.rank, "entries": entries}

    def ckptcheck_scramble(self) -> dict[str, Any]:
        """Mark every parameter and the derived tensors that updates rebuild; tensors that share memory once."""
        done: dict[str, str] = {}
        left: dict[str, str] = {}
        owners: dict[Any, str] = {}
        for name, kind, tensor, opaque in self._ckptcheck_tensors():
            if kind == "buffer":
                continue
            if name.startswith(DRAFT) and self._ckptcheck_foreign_draft():
                left[name] = "its draft model has a checkpoint of its own, so no sync is meant to write it"
                continue
            if kind == "derived" and name.rpartition(".")[2] not in REBUILT:
                left[name] = opaque or "nothing says that an update rebuilds it"
                continue
            why = opaque or marks.why_not(tensor)
            if why:
                left[name] = why
                continue
            owner = owners.setdefault((tensors.place(tensor), tuple(tensor.shape), tensor.stride()), name)
            if owner == name:
                marks.scramble(tensor, marks.seed(self.rank, name))
            done[name] = owner
        self._ckptcheck_marked = done
        return {"rank": self.rank, "names": list(done), "left": left}

    def ckptcheck_leftovers(self) -> dict[str, Any]:
        """Return [name, marked, elements, runs, blank, runs of it] of tensors that an update did not write wholly."""
        found = []
        marked = getattr(self, "_ckptcheck_marked", {})
        for name, _, tensor, _ in self._ckptcheck_tensors():
            if name not in marked or not hasattr(tensor, "shape") or marks.why_not(tensor):
                continue
            count, ranges = marks.left(tensor, marks.seed(self.rank, marked[name]))
            blank, blanks = marks.blank(tensor)
            if count or blank:
                found.append([name, count, tensor.numel(), ranges, blank, blanks])
        return {"rank": self.rank, "entries": found}

    def ckptcheck_load(self, parcels: list[dict[str, Any]], raw: bool) -> dict[str, Any]:
        """Give the parcels to reload_weights, or raw to the model's own load_weights; an exception is an answer."""
        import torch

        stream = ((name, tensor) for parcel in parcels for name, tensor in _opened(parcel))
        try:
            with torch.no_grad(), blank_memory():
                if raw:
                    with torch.inference_mode():
                        loaded = self.model_runner.get_model().load_weights(stream)
                    return {"rank": self.rank, "returned": sorted(loaded) if loaded is not None else None}
                self.reload_weights(weights_iterator=stream, is_checkpoint_format=True)  # type: ignore[attr-defined]
        except Exception as error:
            return {"rank": self.rank, "error": f"{type(error).__name__}: {error}"}
        return {"rank": self.rank, "returned": None}

    def ckptcheck_fetch(self, wanted: list[list[str]], path: str) -> dict[str, Any]:
        """Put tensors on the plane of files, named RANK/NAME. wanted: names, by rank."""
        names = set(wanted[self.rank])
        found = {
            f"{self.rank}/{n}": t for n, _, t, _ in self._ckptcheck_tensors() if n in names and hasattr(t, "shape")
        }
        here = {name: tensor.detach().cpu() for name, tensor in found.items()}
        return plane.put(here, {"plane": "file", "path": f"{path}.{self.rank}"})

    def ckptcheck_watch(self, begin: bool) -> list[Any]:
        """Begin to note, or end and return, the experts that tokens go to, by layer; plain mode's experts tell."""
        seen, vllm_plain.watched = vllm_plain.watched, {} if begin else None
        return list((seen or {}).values())

    def ckptcheck_listen(self, tokens: int) -> None:
        """Keep what the modules give out in the next forward, of a prompt."""
        self._ckptcheck_listening = contextlib.ExitStack()
        model = self.model_runner.get_model()
        self._ckptcheck_captured = self._ckptcheck_listening.enter_context(
            capture.listening([*hf_taps.taps(model)], tokens)
        )

    def ckptcheck_heard(self, path: str) -> dict[str, Any]:
        """Stop listening and put what was kept on the plane of files."""
        self._ckptcheck_listening.close()
        return capture.put(self._ckptcheck_captured, f"{path}.{self.rank}")

    def ckptcheck_poke(self, name: str, index: int, bit: int) -> None:
        """Flip a bit of a flat element: a fault, to see that it is found."""
        import torch

        with torch.inference_mode():
            tensor = next(found for n, _, found, _ in self._ckptcheck_tensors() if n == name)
            size = tensor.element_size()
            flat = tensor.detach().view(-1).view(torch.uint8)
            flat[index * size + bit // 8] ^= 1 << bit % 8

    def ckptcheck_memory(self) -> list[int]:
        """Return the process and the bytes that it holds: on the device, on CPU its resident memory."""
        import torch

        if self.model_runner.device.type == "cuda":
            return [os.getpid(), torch.cuda.memory_allocated(self.model_runner.device)]
        with open("/proc/self/statm", encoding="ascii") as file:
            return [os.getpid(), int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")]

    def _ckptcheck_tensors(self) -> Iterator[tuple[str, str, Any, str]]:
        yield from tensors.walk(self.model_runner.get_model())
        for attribute in ("drafter", "speculator"):  # a draft model is a model that has to be updated too
            draft = getattr(getattr(self.model_runner, attribute, None), "model", None)
            if draft is not None:
                yield from tensors.walk(draft, DRAFT)

    def _ckptcheck_foreign_draft(self) -> bool:
        """Whether the draft model was not loaded from the model's own checkpoint, as MTP layers are."""
        config = self.vllm_config
        draft = getattr(config.speculative_config, "draft_model_config", None)
        return draft is not None and draft.model != config.model_config.model


def _opened(parcel: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    found = plane.get(parcel["address"])
    for name in parcel["names"]:
        yield name, found[name]


@contextlib.contextmanager
def blank_memory() -> Iterator[None]:
    """Have torch fill new memory with NaN, so that what an update allocates and does not write can be recognised."""
    import torch

    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
