"""SGLang behind a host: one engine at a time, its scheduler and detokenizer in processes of their own.

A tensor that does not fit kills SGLang's scheduler, and that kills whoever started it; so this process dies with it, and
its guardian sees that nothing is left. Read against SGLang 0.5.23; calls that 0.5.17 lacks are left out there.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import Any

from . import inventory, sglang_generate, sglang_launch, sglang_plugins, sglang_switches, sglang_update

PACKAGE = __name__.rpartition(".")[0]
LOOK = f"{PACKAGE}.sglang_worker.look"
"""The custom weight loader by which every rank can be asked."""
PLUGINS = {"look": f"{PACKAGE}.sglang_worker:register"}
PLAIN = {"integers": f"{PACKAGE}.sglang_int:register", "eight": f"{PACKAGE}.sglang_eight:register"}
IDLE = 30.0
"""Seconds in which a scheduler that has answered is idle."""
_running: dict[str, Any] = {}


def start(
    model: str,
    dtype: str,
    ranks: int,
    plain: bool,
    length: int,
    tokens: int,
    switches: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Load a checkpoint. length: of the longest sequence, with what is decoded; tokens: that the cache has room for.

    switches: see sglang_switches.py. options: of sglang.Engine.
    """
    stop()
    private = _running.setdefault("folder", tempfile.mkdtemp(dir=os.getcwd()))
    if "offered" not in _running:
        _running["offered"] = plain
        sglang_plugins.offer(private, {**PLUGINS, **(PLAIN if plain else {})})
    if _running["offered"] != plain:
        raise ValueError("a process of SGLang is plain or stock for as long as it lives")
    settings = sglang_launch.arguments(model, dtype, ranks, length, tokens, switches, options, LOOK)
    import sglang

    engine = sglang.Engine(**settings)
    _running.update(engine=engine, updates=0, logprobs=switches.get("logprobs", "raw"))
    _running["stock"] = ask("settle", [_running["logprobs"]])[0]
    return _about(engine)


def _about(engine: Any) -> dict[str, Any]:
    import sglang

    manager, value = engine.tokenizer_manager, _value
    names = ("device", "attention_backend", "disable_radix_cache", "disable_cuda_graph", "page_size", "tp_size")
    model = manager.model_config
    return {
        "version": sglang.__version__,
        "dtype": str(model.dtype).rpartition(".")[2],
        "ranks": int(value("tp_size")),
        "architecture": (model.hf_config.architectures or [""])[0],
        "facts": {
            **{name: str(value(name)) for name in names},
            "mode": "plain" if _running["offered"] and str(value("device")) == "cpu" else "stock",
            "quantization": str(model.quantization),
            "stock_logprobs": str(_running["stock"]),
            "block_size": str(value("page_size") or 1),
            "sleep": str(value("enable_memory_saver")),
            "follows": str(not value("speculative_algorithm")),
            "session": str(sglang_update.has_session()),
            "gpus": ",".join(gpu for gpu in ask("gpu", []) if gpu),
        },
        "switches": sglang_switches.resolved(value, _running["logprobs"]),
    }


def _value(name: str) -> Any:
    """Return an argument of SGLang as it was resolved, as given where this SGLang tells no more."""
    engine = _engine()
    try:
        return engine.tokenizer_manager.config_value(name)
    except (AttributeError, KeyError, ValueError):
        return getattr(engine.server_args, name, None)


def stop() -> None:
    """End the engine and what it started; nothing happens where none runs."""
    engine = _running.pop("engine", None)
    if engine is not None:
        engine.shutdown()


def ask(method: str, arguments: list[Any], loader: bool = False) -> list[Any]:
    """Call a method of sglang_worker on every rank and return what each said. loader: by the custom weight loader."""
    path = _private(method)
    request = json.dumps({"method": method, "arguments": arguments, "path": path})
    if loader:
        sglang_update.looked(_engine(), LOOK, request)
    else:
        _engine().collective_rpc("ckptcheck", request=request)
    found = []
    for rank in range(int(_value("tp_size"))):
        with open(f"{path}.{rank}", encoding="utf-8") as file:
            said = json.load(file)
        os.remove(f"{path}.{rank}")
        if "error" in said:
            raise RuntimeError(f"rank {rank}: {said['error']}")
        found.append(said["told"])
    return found


def _private(name: str) -> str:
    """Return a path that was not used before."""
    _running["files"] = _running.get("files", 0) + 1
    return os.path.join(_running["folder"], f"{name}-{_running['files']}")


def fetch(wanted: list[list[str]], path: str) -> None:
    """Write tensors of all ranks to one file."""
    inventory.gather(ask, wanted, path)


def update(parcels: list[dict[str, Any]], transport: str, flush: bool) -> dict[str, Any]:
    """Update the weights; say what came of it. transport: see sglang_update."""
    _settle()
    _running["updates"] += 1
    return dict(_loop(_update(parcels, transport, flush, str(_running["updates"]))))


async def _update(parcels: list[dict[str, Any]], transport: str, flush: bool, version: str) -> dict[str, Any]:
    def meet() -> None:
        ask("meet", [str(parcels[0]["address"]["key"])])

    return await sglang_update.update(_engine(), parcels, transport, flush, version, _private("checkpoint"), meet)


def inflight(
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    pause: str,
    clear_cache: bool,
    after: int,
    parcels: list[dict[str, Any]],
    version: str,
) -> dict[str, Any]:
    """Update the weights while requests are running."""

    async def work() -> dict[str, Any]:
        return await _update(parcels, "tensor", clear_cache, version)

    return dict(_loop(sglang_generate.inflight(_engine(), prompts, samplings, pause, after, work)))


def _loop(work: Any) -> Any:
    return _engine().loop.run_until_complete(work)


def score(sequences: list[list[int]], decode: int) -> list[dict[str, Any]]:
    """Return the logprobs of prompts, and what greedy decoding adds."""
    return sglang_generate.score(_engine(), sequences, decode)


def follow(sequences: list[list[int]], prompt: int) -> list[list[float]]:
    """Return the logprobs of the tokens after the first `prompt` ones, each computed by a step of decoding."""
    prompts, wanted = [tokens[:prompt] for tokens in sequences], [tokens[prompt:] for tokens in sequences]
    found = sglang_generate.followed(_engine(), prompts, wanted, _private, ignore_eos=True)
    return [each["logprobs"] for each in found]


def forced(prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    """Decode these tokens after the prompt until the engine itself would stop."""
    return sglang_generate.followed(_engine(), [prompt], [tokens], _private, ignore_eos=False)[0]


def full(sequences: list[list[int]], path: str) -> None:
    """Write the logprobs of the whole vocabulary."""
    sglang_generate.full(_engine(), sequences, _engine().tokenizer_manager.model_config.vocab_size, path)


def generate(prompts: list[list[int]], samplings: list[dict[str, Any]], salt: str) -> list[dict[str, Any]]:
    """Return a response for each prompt."""

    def seed(number: int) -> None:
        ask("seed", [number])

    return sglang_generate.generate(_engine(), prompts, samplings, salt, seed)


def routes(tokens: list[int]) -> list[list[list[int]]]:
    """Return the experts that each token of a sequence went to: layers, tokens, choices. [] where there are none."""
    ask("watch", [True])
    try:
        score([tokens], 0)
    finally:
        seen = ask("watch", [False])[0]
    return [[row for piece in layer for row in piece][: len(tokens)] for layer in seen]


def capture(tokens: list[int], path: str) -> list[dict[str, Any]]:
    """Keep what every module gives out while a prompt is prefilled, in a file for each rank."""
    reset_prefix_cache()
    ask("listen", [len(tokens)])
    try:
        generate(
            [tokens],
            [{"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_tokens": 1, "seed": None, "ignore_eos": True}],
            "",
        )
    finally:
        heard = ask("heard", [path])
    return heard


def reset_prefix_cache() -> None:
    """Forget cached keys and values."""
    _settle()
    if not (done := _engine().flush_cache()).success:
        raise RuntimeError(f"SGLang did not flush its cache: {done}")


def _settle() -> None:
    """Wait until the scheduler has put away what it has answered: until then it refuses to flush its cache."""
    end = time.monotonic() + IDLE
    while not all(ask("idle", [])) and time.monotonic() < end:
        time.sleep(0.01)


def version(value: str | None = None) -> str:
    """Return the weight version, set first where a value is given."""
    return str(_loop(sglang_update.version(_engine(), value)))


def sleep(tags: list[str] | None) -> None:
    """Have the engine give its device memory away (release_memory_occupation). It has to be idle, or it dies."""
    _settle()
    _engine().release_memory_occupation(tags)


def wake(tags: list[str] | None) -> None:
    """Have it take the memory again (resume_memory_occupation)."""
    _engine().resume_memory_occupation(tags)


def check(action: str) -> dict[str, Any]:
    """Ask SGLang's own weight checker; action: snapshot, compare, checksum, reset_tensors."""
    return dict(_loop(sglang_update.check(_engine(), action)))


def _engine() -> Any:
    if "engine" not in _running:
        raise LookupError("no engine is running")
    return _running["engine"]


VERBS = {
    function.__name__: function
    for function in (
        *(start, stop, ask, fetch, update, score, follow, generate, forced, full, inflight, routes, capture),
        *(reset_prefix_cache, version, sleep, wake, check),
    )
} | {"read": lambda **arguments: sglang_generate.read(_engine(), **arguments)}
