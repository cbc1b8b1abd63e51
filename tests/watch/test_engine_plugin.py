"""CKPTCHECK_WATCH watches the syncs into vLLM and SGLang from inside, and an engine without it is left as it is."""

from __future__ import annotations

import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import ckptcheck
from ckptcheck.runs.history.history import open_history
from ckptcheck.watch import SyncWarning, engine_plugin
from ckptcheck.watch.engine_plugin import ModelSyncs, parse_settings
from tests.paths import ROOT
from tests.watch.toy import NAMES, Trainer

torch = pytest.importorskip("torch")


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A model as engines have it: it takes pairs of names and tensors, all but those in `deaf`."""

    def __init__(self) -> None:
        super().__init__()
        self.deaf: tuple[str, ...] = ()
        for name in NAMES:
            owner, _, last = name.rpartition(".")
            self._make_module(owner).register_parameter(last, torch.nn.Parameter(torch.zeros(4, 4)))

    def _make_module(self, path: str) -> Any:
        module: Any = self
        for part in path.split("."):
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = getattr(module, part)
        return module

    def load_weights(self, weights: Any) -> set[str]:
        names = set()
        for name, tensor in weights:
            names.add(name)
            if name not in self.deaf:
                self.get_parameter(name).data.copy_(tensor)
        return names


class WorkerBase:
    """As vLLM 0.32's, as far as the plug-in goes."""

    def __init__(self, rank: int = 0, adapters: Any = None) -> None:
        self.rank = rank
        self.model_runner = SimpleNamespace(lora_manager=adapters)


class WorkerMethods:
    """What vLLM 0.32's worker has beside its base, as far as the plug-in goes."""

    computed = 0

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        self.model = Model()
        self.model.load_weights([(name, torch.zeros(4, 4)) for name in NAMES])

    def get_model(self) -> Model:
        return self.model

    def execute_model(self, scheduler_output: Any) -> str:
        self.computed += 1
        return "tokens"

    def finish_weight_update(self) -> None:
        pass


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Watch a stand-in of vLLM, with a record."""
    # a busy machine must not make it look at a part of the tensors
    monkeypatch.setenv("CKPTCHECK_WATCH", f"record={tmp_path}/syncs.jsonl,share=1000,budget=60")
    monkeypatch.setattr(engine_plugin, "QUIET_SECONDS", 1e9)
    module = ModuleType("vllm.v1.worker.worker_base")
    module.WorkerBase = type("WorkerBase", (WorkerBase,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.worker_base", module)
    return tmp_path / "syncs.jsonl"


def start_worker(**arguments: Any) -> Any:
    """Begin a worker as `WorkerWrapperBase.init_worker` of vLLM 0.32 does: it loads the plug-ins, then makes the worker."""
    engine_plugin.watch_vllm()
    engine_plugin.watch_vllm()  # vLLM may load a plug-in twice
    base = sys.modules["vllm.v1.worker.worker_base"].WorkerBase
    worker = type("Worker", (WorkerMethods, base), {})(**arguments)
    worker.load_model()
    return worker


def export(trainer: Trainer) -> list[tuple[str, Any]]:
    return [(name, torch.from_numpy(values.copy())) for name, values in trainer.export()]


def push_one_by_one(worker: Any, trainer: Trainer, lose: str = "") -> None:
    for pair in export(trainer):
        if pair[0] != lose:
            worker.model.load_weights([pair])


def push_at_once(worker: Any, trainer: Trainer, lose: str = "") -> None:
    worker.model.load_weights(iter([pair for pair in export(trainer) if pair[0] != lose]))


def push_while_requests_run(worker: Any, trainer: Trainer, lose: str = "") -> None:
    for number, pair in enumerate(export(trainer)):
        if pair[0] != lose:
            worker.model.load_weights([pair])
        if number:
            worker.execute_model(None)


class Adapters:
    """As vLLM 0.32's `WorkerLoRAManager`, as far as the plug-in goes: an adapter that it has is not loaded again."""

    def __init__(self) -> None:
        self._adapter_manager = self
        self.loaded: dict[int, Any] = {}

    def get_adapter(self, number: int) -> Any:
        return self.loaded.get(number)

    def add_adapter(self, request: Any) -> bool:
        if request.lora_int_id in self.loaded:
            return False
        halves = torch.full((4, 2), request.value), [torch.full((2, 4), request.value), None]
        self.loaded[request.lora_int_id] = SimpleNamespace(
            loras={"model.layers.0.self_attn.qkv_proj": SimpleNamespace(lora_a=halves[0], lora_b=halves[1])}
        )
        return True


def serve_adapter(worker: Any, number: int, value: float, name: str = "policy") -> None:
    request = SimpleNamespace(lora_int_id=number, lora_name=name, value=value)
    for _ in range(2):  # every request names its adapter
        worker.model_runner.lora_manager.add_adapter(request)


def test_adapters_that_never_pass_load_weights_are_recorded(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker = start_worker(adapters=Adapters())
    for number in range(1, 4):
        serve_adapter(worker, number, float(number))
    adapters = record.with_name("syncs-adapters.jsonl")
    synced = open_history(adapters).syncs
    assert [sync.step for sync in synced] == [0, 0, 1], "the first weights may come twice"
    at = "model.layers.0.self_attn.qkv_proj"
    assert list(synced[0].sent) == [f"{at}.lora_A.weight", f"{at}.lora_B.0.weight"]
    assert ckptcheck.history(adapters).findings == ()
    with pytest.warns(SyncWarning, match="HIS002"):
        serve_adapter(worker, 4, 3.0)
    serve_adapter(worker, 5, 1.0, "another")
    serve_adapter(worker, 6, 1.0)
    assert len(open_history(adapters).syncs) == 4
    assert "records no more adapters: policy and another are served side by side" in capsys.readouterr().err


PUSHES = [push_one_by_one, push_at_once, push_while_requests_run]


@pytest.mark.parametrize("push", PUSHES)
def test_each_sync_of_vllm_is_one_line_however_it_is_sent(record: Path, push: Callable[..., None]) -> None:
    worker, trainer = start_worker(), Trainer()
    for _ in range(3):
        trainer.step()
        push(worker, trainer)
        assert worker.execute_model(None) == "tokens"
        assert worker.execute_model(None) == "tokens"
    history = open_history(record)
    assert [(sync.step, len(sync.sent), len(sync.held), sync.engine) for sync in history.syncs] == [
        (0, 6, 6, "vllm"), (0, 6, 6, "vllm"), (1, 6, 6, "vllm"),
    ]  # fmt: skip


@pytest.mark.parametrize("push", PUSHES)
def test_a_tensor_that_the_engine_drops_and_one_that_is_lost_are_named(
    record: Path, push: Callable[..., None], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, trainer = start_worker(), Trainer()
    for _ in range(3):
        trainer.step()
        push(worker, trainer)
        worker.execute_model(None)
    monkeypatch.setattr(engine_plugin, "QUIET_SECONDS", -1.0)
    trainer.step()
    worker.model.deaf = (NAMES[2],)
    push_at_once(worker, trainer, lose=NAMES[4])
    with pytest.warns(SyncWarning) as caught:
        worker.execute_model(None)
    said = " ".join(str(warning.message) for warning in caught)
    assert (
        f"HIS001 step 2: 1 tensor of the engine did not change although the trainer sent new values: {NAMES[2]}" in said
    )
    assert "HIS007" in said
    assert NAMES[4] not in open_history(record).syncs[-1].sent


class Receiver:
    """As the receiver in NeMo-RL's worker extension of vLLM: it answers True whatever became of the tensors."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.dropped = worker, ""

    def update_weights_via_ipc_zmq(self, buckets: list[list[tuple[str, Any]]]) -> bool:
        for bucket in buckets:
            self.worker.model.load_weights(weights=[pair for pair in bucket if pair[0] != self.dropped])
        return True


@pytest.mark.parametrize(("steps_before", "code"), [(3, "HIS007"), (0, "HIS017")])
def test_a_tensor_that_a_receiver_drops_is_named_although_it_answers_true(
    record: Path, steps_before: int, code: str
) -> None:
    worker, trainer = start_worker(), Trainer()
    receiver = Receiver(worker)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyncWarning)
        for step in range(steps_before + 4):
            trainer.step()
            receiver.dropped = NAMES[2] if step >= steps_before else ""
            weights = export(trainer)
            assert receiver.update_weights_via_ipc_zmq([weights[:3], weights[3:]])
            worker.finish_weight_update()
    assert (code, NAMES[2]) in [(finding.code, finding.key) for finding in ckptcheck.history(record).findings]


def test_the_first_sync_waits_for_what_comes_between_requests(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start_worker()
    push_while_requests_run(worker, Trainer())
    assert not record.exists()
    monkeypatch.setattr(engine_plugin, "QUIET_SECONDS", -1.0)
    worker.execute_model(None)
    assert len(open_history(record).syncs[0].sent) == 6


def test_an_update_that_is_finished_ends_the_sync(record: Path) -> None:
    worker, trainer = start_worker(), Trainer()
    push_at_once(worker, trainer)
    worker.finish_weight_update()
    assert len(open_history(record).syncs) == 1


def test_an_engine_whose_watch_fails_goes_on(record: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("CKPTCHECK_WATCH", "recrod=syncs.jsonl")
    worker = start_worker()
    push_at_once(worker, Trainer())
    assert worker.execute_model(None) == "tokens"
    assert (
        "could not watch the model of vLLM: ValueError: recrod=syncs.jsonl is none of record=…"
        in capsys.readouterr().err
    )


def test_nothing_happens_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CKPTCHECK_WATCH", raising=False)
    monkeypatch.setattr(engine_plugin, "_hook_vllm", pytest.fail)
    monkeypatch.setattr(engine_plugin, "_hook_sglang", pytest.fail)
    engine_plugin.watch_vllm()
    engine_plugin.watch_sglang()


def test_sglang_is_hooked_by_its_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: dict[str, Callable[..., Any]] = {}
    registry = ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookType = SimpleNamespace(BEFORE="before", AFTER="after")  # type: ignore[attr-defined]
    registry.HookRegistry = SimpleNamespace(  # type: ignore[attr-defined]
        register=lambda target, hook, kind: hooks.__setitem__(f"{kind} {target.rpartition('.')[2]}", hook)
    )
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
    # a busy machine must not make it look at a part of the tensors
    monkeypatch.setenv("CKPTCHECK_WATCH", f"record={tmp_path}/syncs.jsonl,share=1000")
    engine_plugin.watch_sglang()
    assert set(hooks) == {"after load_model", "before forward", "after end_weight_update"}
    runner, trainer = SimpleNamespace(model=Model()), Trainer()
    for other in (SimpleNamespace(tp_rank=1, model=Model()), SimpleNamespace(is_draft_worker=True, model=Model())):
        hooks["after load_model"](None, other)
        other.model.load_weights(export(trainer))
        hooks["before forward"](other, None)
    hooks["after load_model"](None, runner)
    for _ in range(3):
        runner.model.load_weights(export(trainer))
        hooks["before forward"](runner, None)
        trainer.step()
    runner.model.load_weights(export(trainer))
    hooks["after end_weight_update"](None)
    assert [len(sync.held) for sync in open_history(tmp_path / "syncs.jsonl").syncs] == [6] * 4
    assert [len(sync.sent) for sync in open_history(tmp_path / "syncs.rank1.jsonl").syncs] == [6]
    assert len(list(tmp_path.glob("syncs*.jsonl"))) == 2, "a draft model has no record"


@pytest.mark.parametrize("text", ["record", "record=", "color=red", "every=x", "share=all", "record=a,=b"])
def test_settings_that_are_not_known_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is none of|takes a number"):
        parse_settings(text)


def test_the_package_has_the_entry_points() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    for group, function in {"vllm.general_plugins": "watch_vllm", "sglang.srt.plugins": "watch_sglang"}.items():
        module, _, name = groups[group]["ckptcheck"].partition(":")
        assert (module, name) == (engine_plugin.__name__, function)
        assert callable(getattr(engine_plugin, name))


def test_a_model_keeps_what_its_load_returns() -> None:
    from ckptcheck.watch import Watch

    model = Model()
    ModelSyncs(model, Watch())
    assert model.load_weights(export(Trainer())) == set(NAMES)
