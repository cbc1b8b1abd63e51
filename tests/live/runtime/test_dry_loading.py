"""Loaders of transformers, vLLM and SGLang, asked about checkpoints whose values they do not see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file, save_file

import ckptcheck
from ckptcheck.checkpoint.dry_load import DryLoad
from ckptcheck.checkpoint.dry_load_problems import describe_load
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.runtime import dry_loading
from ckptcheck.live.runtime.dry_loading import WorkerDryLoader, copy_without_values
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
from ckptcheck.live.runtime.process.process import WORKER_FOLDER
from ckptcheck.live.runtime.worker.ckptcheck_worker.dry_load_answer import describe_failure
from ckptcheck.live.runtime.worker.ckptcheck_worker.landlock import landlock_version
from tests.conftest import needs_engine
from tests.factories.checkpoint_cases import CHECKPOINTS

TINY = CHECKPOINTS / "tiny-llama"
Tensors = dict[str, numpy.ndarray[Any, Any]]
UP = "model.layers.0.mlp.up_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
KEYS = "model.layers.1.self_attn.k_proj.weight"
BIASES = "model.layers.0.self_attn.{}_proj.bias"
EMBEDDINGS = "model.embed_tokens.weight"


def lose_norm(tensors: Tensors, config: dict[str, Any]) -> None:
    del tensors["model.norm.weight"]


def lose_keys(tensors: Tensors, config: dict[str, Any]) -> None:
    del tensors[KEYS]


def halve_up(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors[UP] = tensors[UP][:6].copy()


def add_tensor(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors["model.layers.0.self_attn.surplus.weight"] = tensors["model.norm.weight"].copy()


def change_heads(tensors: Tensors, config: dict[str, Any]) -> None:
    config["num_key_value_heads"] = 3


def cut_vocabulary(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors[EMBEDDINGS] = tensors[EMBEDDINGS][:24].copy()


def transpose_down(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors[DOWN] = tensors[DOWN].T.copy()


def ask_for_biases(tensors: Tensors, config: dict[str, Any]) -> None:
    config["attention_bias"] = True


def lose_one_bias(tensors: Tensors, config: dict[str, Any]) -> None:
    ask_for_biases(tensors, config)
    for name in [name for name in tensors if "self_attn" in name and name != KEYS]:
        tensors[name.replace("weight", "bias")] = numpy.zeros(tensors[name].shape[0], tensors[name].dtype)


def name_own_type(tensors: Tensors, config: dict[str, Any]) -> None:
    config["model_type"] = "our_own"


def name_class_as_text(tensors: Tensors, config: dict[str, Any]) -> None:
    config["architectures"] = "LlamaForCausalLM"


def name_own_class(tensors: Tensors, config: dict[str, Any]) -> None:
    config["architectures"] = ["OurOwnForCausalLM"]
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OurOwnForCausalLM"}


EDITS = (
    lose_norm, lose_keys, halve_up, add_tensor, change_heads, cut_vocabulary, transpose_down, ask_for_biases, lose_one_bias,
    name_own_type, name_class_as_text, name_own_class,
)  # fmt: skip


def write_edited(folder: Path, edit: Callable[[Tensors, dict[str, Any]], None]) -> Path:
    """Copy the tiny Llama, change its tensors and its config, and return the folder."""
    shutil.copytree(TINY, folder)
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    edit(tensors, config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def scan_edited(tmp_path: Path, name: str) -> Mapping[str, Report]:
    """Return edit → report, and that of the sound model as ``sound``; one process loads them all."""
    folders = {edit.__name__: write_edited(tmp_path / edit.__name__, edit) for edit in EDITS}
    folders["sound"] = TINY
    reports = ckptcheck.scan(list(folders.values()), headers_only=True, select=["DRY"], dry_load=name)
    result = dict(zip(folders, reports, strict=True))
    assert {name for name, report in result.items() if report.crashed} <= {"name_own_type", "name_own_class"}
    return result


def list_messages(report: Report) -> list[str]:
    return [f"{finding.severity}: {finding.message}" for finding in report.findings]


def test_transformers_names_what_it_does_not_find(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    asked = f"transformers {transformers.__version__}"
    reports = scan_edited(tmp_path, "transformers")
    assert reports["sound"].passed == ("DRY001",)
    llama = "LlamaForCausalLM"
    assert {name: list_messages(report) for name, report in reports.items() if report.findings} == {
        "lose_norm": [f"error: {asked} builds {llama} with 30 parameters, and nothing stored fills model.norm.weight"],
        "lose_keys": [f"error: {asked} builds {llama} with 30 parameters, and nothing stored fills {KEYS}"],
        "halve_up": [f"error: {asked} builds {UP} of {llama} as [12, 8], and [6, 8] is stored"],
        "add_tensor": [
            f"warning: {asked} has no place in {llama} for model.layers.0.self_attn.surplus.weight, and leaves it out"
        ],
        "change_heads": [
            f"error: {asked} builds model.layers.0.self_attn.k_proj.weight of {llama} as [6, 8], and [4, 8] is stored; "
            "5 more tensors have other shapes"
        ],
        "cut_vocabulary": [f"error: {asked} builds {EMBEDDINGS} of {llama} as [32, 8], and [24, 8] is stored"],
        "transpose_down": [f"error: {asked} builds {DOWN} of {llama} as [8, 12], and [12, 8] is stored"],
        "ask_for_biases": [
            f"error: {asked} builds {llama} with 42 parameters, and nothing stored fills {BIASES.format('k')}, "
            f"{BIASES.format('o')}, {BIASES.format('q')} and 9 more"
        ],
        "lose_one_bias": [
            f"error: {asked} builds {llama} with 42 parameters, and nothing stored fills {KEYS.replace('weight', 'bias')}"
        ],
    }
    assert reports["name_class_as_text"].passed == ("DRY001",)
    assert {name: dict(report.crashed)["DRY001"] for name, report in reports.items() if report.crashed} == {
        "name_own_class": f"{asked} could not be asked: it has no class OurOwnForCausalLM",
        "name_own_type": f"{asked} could not be asked: it has no model_type our_own",
    }


@pytest.mark.engine
def test_vllm_names_what_it_does_not_find(tmp_path: Path) -> None:
    asked = f"vLLM {needs_engine('vllm').version}"
    reports = scan_edited(tmp_path, "vllm")
    assert reports["sound"].passed == ("DRY001",)
    assert "could not be asked: the checkpoint brings its own code" in dict(reports["name_own_class"].crashed)["DRY001"]
    found = {name: list_messages(report) for name, report in reports.items() if report.findings}
    assert found.keys() == {edit.__name__ for edit in EDITS} - {"name_own_type", "name_own_class"}
    refuses = f"error: {asked} refuses to load it"
    assert "Following weights were not initialized from checkpoint: {'model.norm.weight'}" in found["lose_norm"][0]
    assert found["lose_keys"] == [
        f"error: in {asked}, the stored tensors fill only 96 of 128 elements of model.layers.1.self_attn.qkv_proj.weight "
        "(LlamaForCausalLM)"
    ]
    assert found["halve_up"][0].startswith(f"{refuses} as LlamaForCausalLM: RuntimeError: ")
    assert "no module or parameter named 'layers.0.self_attn.surplus'" in found["add_tensor"][0]
    assert "num_heads (4) is not divisible by num_kv_heads (3)" in found["change_heads"][0]
    (cut,) = found["cut_vocabulary"]
    assert (
        "AssertionError: vocab_parallel_embedding.py: assert loaded_weight.shape[output_dim] == self.org_vocab_size"
        in cut
    )
    assert cut.endswith(f". The last tensor that it read is {EMBEDDINGS}, [24, 8]")
    assert found["transpose_down"][0].endswith(
        f"length (12) exceeds dimension size (8). The last tensor that it read is {DOWN}, [12, 8]"
    )
    assert "last tensor" not in found["lose_norm"][0], "vLLM had read them all"
    assert found["ask_for_biases"][0].startswith(
        f"error: {asked} builds LlamaForCausalLM with 27 parameters, and nothing"
    )
    assert "fill only 12 of 16 elements of model.layers.1.self_attn.qkv_proj.bias" in found["lose_one_bias"][0]
    assert found["name_class_as_text"] == [f"{refuses}: ValidationError: architectures Input should be a valid list"]


@pytest.mark.engine
def test_sglang_names_what_it_does_not_find(tmp_path: Path) -> None:
    asked = f"SGLang {needs_engine('sglang').version}"
    reports = scan_edited(tmp_path, "sglang")
    assert reports["sound"].passed == ("DRY001",)
    assert "could not be asked: the checkpoint brings its own code" in dict(reports["name_own_class"].crashed)["DRY001"]
    found = {name: list_messages(report) for name, report in reports.items() if report.findings}
    assert found.pop("change_heads")[0].startswith(
        f"error: {asked} refuses to load it as LlamaForCausalLM: RuntimeError: "
    )
    assert found.pop("cut_vocabulary")[0].endswith(f". The last tensor that it read is {EMBEDDINGS}, [24, 8]")
    assert found.pop("transpose_down")[0].endswith(f". The last tensor that it read is {DOWN}, [12, 8]")
    assert "'L' is not a registered model" in found.pop("name_class_as_text")[0]
    filled = f"error: in {asked}, the stored tensors fill only"
    assert found == {
        "lose_norm": [
            f"error: {asked} builds LlamaForCausalLM with 21 parameters, and nothing stored fills model.norm.weight"
        ],
        "lose_keys": [f"{filled} 96 of 128 elements of model.layers.1.self_attn.qkv_proj.weight (LlamaForCausalLM)"],
        "halve_up": [f"{filled} 48 of 96 elements of {UP} (LlamaForCausalLM)"],
        "ask_for_biases": [
            f"warning: {asked} leaves zeros in {BIASES.format('o')}, {BIASES.format('qkv')}, "
            f"{BIASES.format('o').replace('0', '1')} and 3 more of LlamaForCausalLM: no layer has such a bias stored whole"
        ],
        "lose_one_bias": [f"{filled} 12 of 16 elements of model.layers.1.self_attn.qkv_proj.bias (LlamaForCausalLM)"],
    }


class Answering:
    """A worker that answers, or raises, what it is told to."""

    def __init__(self, answer: Callable[[str], dict[str, Any]]) -> None:
        self.answer = answer

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, method: str, **arguments: Any) -> Any:
        return "5" if method == "version" else self.answer(arguments["folder"])


def load_answered(
    answer: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, target: Path = TINY
) -> DryLoad:
    """Return what a dry load makes of a worker's answer. answer: takes the folder that is loaded."""
    monkeypatch.setattr(dry_loading, "_find_python", lambda *_: (Path("/usr/bin/python3"), {}))
    monkeypatch.setattr(WorkerDryLoader, "_take_worker", lambda _: Answering(answer))
    return WorkerDryLoader("transformers").load(open_checkpoint(str(target)))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RemoteError("load", "dry_load", "KeyError", "x", ""), {"unasked": "KeyError: x"}),
        (WorkerDied("it died (killed by SIGKILL)"), {"unasked": "it died (killed by SIGKILL)"}),
        (
            WorkerDied("it died (aborted)", ("std::bad_alloc",)),
            {"unasked": "it died (aborted); its last output: std::bad_alloc"},
        ),
        (WorkerTimeout("no answer"), {"unasked": "it did not finish within 61 seconds"}),
    ],
)
def test_a_loader_that_ends_has_refused_nothing(
    error: Exception, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of this machine, or the limit of the process, may have ended it."""

    def end(_: str) -> dict[str, Any]:
        raise error

    assert load_answered(end, monkeypatch) == DryLoad("transformers 5", broke_off=True, **expected)  # type: ignore[arg-type]


def test_the_message_names_the_target_and_not_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_answered(lambda folder: {"refused": f"OSError: {folder}/config.json is wrong"}, monkeypatch)
    assert loaded.refused == f"OSError: {TINY}/config.json is wrong"


@pytest.mark.parametrize(
    "reason",
    [
        "Can't load image processor for '/tmp/model'. Make sure it has a preprocessor_config.json file",
        "Can't load tokenizer for '/tmp/model'",
        "Couldn't instantiate the backend tokenizer from one of: (1) a `tokenizers` library file",
        "Failed to load the processor.",
        "--mamba-block-size can only be set with --enable-prefix-caching",
    ],
)
def test_what_is_not_copied_and_what_an_engine_sets_itself_refuse_nothing(reason: str) -> None:
    """A tokenizer of 17 MB stays behind, and on a CPU vLLM sets options of its own against each other."""
    assert describe_failure(OSError(reason)) == {"model": "", "unasked": f"OSError: {reason}"}


def test_a_load_without_memory_broke_off() -> None:
    failure = RuntimeError("cannot build the model")
    failure.__cause__ = MemoryError()
    assert describe_failure(failure) == {"model": "", "unasked": f"RuntimeError: {failure}", "broke_off": True}


OWN_CODE = "The repository contains custom code. Please pass the argument `trust_remote_code=True`"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"unasked": OWN_CODE}, "the checkpoint brings its own code, which is not run"),
        ({"refused": "KeyError: 'own'"}, "the checkpoint brings its own code, which is not run: KeyError: 'own'"),
        ({"unasked": "ImportError: no kernel"}, "ImportError: no kernel"),
    ],
)
def test_what_needs_its_own_code_is_not_asked_about(
    answer: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_edited(tmp_path / "own", name_own_class)
    loaded = load_answered(lambda _: {"model": "", **answer}, monkeypatch, own)
    assert (loaded.unasked, loaded.refused) == (reason, "")


def test_unfilled_parameters_are_compared_with_what_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed experts are stored under names of their own: to export them again would not help."""
    lost = {"unfilled": ["a.weight"], "unfilled_count": 1, "parameters": 2}
    for left_out, hint in (
        ([], "export again; until then it computes with random numbers there"),
        (
            ["a.packed"],
            "compare with the stored tensors that it has no place for; until then it computes with random numbers there",
        ),
    ):
        loaded = {**lost, "left_out": left_out, "left_out_count": len(left_out)}
        load = load_answered(lambda _, loaded=loaded: loaded, monkeypatch)
        problems = list(describe_load(open_checkpoint(str(TINY)), "transformers", load))
        assert problems[0].hint == hint


def test_scales_without_a_place_or_a_tensor_point_at_the_ignore_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own answer for linear attention that an ignore list of ``re:linear_attn.*`` does not reach."""
    scales = ["model.layers.0.linear_attn.out_proj.weight_scale", "model.layers.0.mlp.up_proj.weight_scale_inv"]
    for answer, hint in (
        ({"unfilled": scales, "unfilled_count": 2, "parameters": 9}, "add these modules to the ignore list"),
        ({"left_out": scales, "left_out_count": 2, "parameters": 9}, "remove these modules from the ignore list"),
    ):
        load = load_answered(lambda _, answer=answer: answer, monkeypatch)
        (problem,) = describe_load(open_checkpoint(str(TINY)), "vllm", load)
        assert problem.hint is not None
        assert problem.hint.startswith(hint)


class Played:
    """A loader that answers what a test wants."""

    def __init__(self, name: str, answer: DryLoad | EvidenceError) -> None:
        self.name, self.answer = name, answer

    def load(self, ckpt: Any) -> DryLoad:
        if isinstance(self.answer, EvidenceError):
            raise self.answer
        return self.answer


SOUND, UNASKED = DryLoad("transformers 5", model="L"), DryLoad("vLLM 1", unasked="no kernel")
DEAD = DryLoad("vLLM 1", unasked="it died (killed by SIGKILL)", broke_off=True)
REFUSED, FAILED = DryLoad("SGLang 1", refused="no such class"), EvidenceError("vLLM could not be started")


@pytest.mark.parametrize(
    ("answers", "found", "skipped", "crashed"),
    [
        ((SOUND, UNASKED), [], [], ["vLLM 1 could not be asked: no kernel"]),
        (
            (UNASKED, REFUSED),
            ["error: SGLang 1 refuses to load it: no such class"],
            [],
            ["vLLM 1 could not be asked: no kernel"],
        ),
        ((FAILED, REFUSED), ["error: SGLang 1 refuses to load it: no such class"], [], [FAILED.message]),
        ((SOUND,), [], [], []),
        ((SOUND, DEAD), [], [], ["vLLM 1 could not be asked: it died (killed by SIGKILL)"]),
    ],
)
def test_a_consumer_that_could_not_be_asked_hides_no_other(
    answers: tuple[DryLoad | EvidenceError, ...], found: list[str], skipped: list[str], crashed: list[str]
) -> None:
    loaders = tuple(Played(str(number), answer) for number, answer in enumerate(answers))
    rules = [rule for rule in load_rules() if rule.code == "DRY001"]
    report = run_rules(open_checkpoint(str(TINY), options=ScanOptions(dry_loaders=loaders)), rules)
    assert list_messages(report) == found
    assert [reason for _, reason in report.skipped] == skipped
    assert [reason for _, reason in report.crashed] == crashed


def test_only_headers_and_configs_are_copied(tmp_path: Path) -> None:
    source, copy = tmp_path / "model", tmp_path / "copy"
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", source)
    (source / "modeling_own.py").write_text("raise SystemExit", encoding="utf-8")
    (tmp_path / "elsewhere.json").write_text("{}", encoding="utf-8")
    (source / "outside.json").symlink_to(tmp_path / "elsewhere.json")
    copy.mkdir()
    copy_without_values(open_checkpoint(str(source)), copy)
    names = {path.name for path in copy.iterdir()}
    assert {"config.json", "model.safetensors.index.json"} <= names
    assert not {"modeling_own.py", "outside.json"} & names
    for shard in source.glob("*.safetensors"):
        raw, copied = shard.read_bytes(), (copy / shard.name).read_bytes()
        header = 8 + int.from_bytes(raw[:8], "little")
        assert (copied[:header], len(copied)) == (raw[:header], len(raw))
        assert not any(copied[header:])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("vlm", "'vlm' cannot be asked for a dry load"),
        ("vllm=", "'vllm=' names no Python"),
    ],
)
def test_an_unknown_consumer_is_refused(wanted: str, message: str) -> None:
    with pytest.raises(CkptcheckError, match=message):
        ckptcheck.scan(TINY, dry_load=wanted)


def test_what_is_no_whole_model_is_not_asked_about(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    without_config = tmp_path / "model"
    shutil.copytree(TINY, without_config)
    (without_config / "config.json").unlink()
    targets = [CHECKPOINTS / "tiny-lora", TINY / "model.safetensors", without_config]
    reports = ckptcheck.scan(targets, headers_only=True, dry_load="transformers")
    assert [report.verdict for report in reports] == ["clean", "incomplete", "incomplete"]
    assert ckptcheck.scan(targets[0], headers_only=True, dry_load="transformers").exit_code() == 2
    assert [dict((*report.skipped, *report.crashed))["DRY001"] for report in reports] == [
        "it does not apply to this target",
        "a dry load needs a whole model: name its folder",
        "there is no config.json, so no loader knows what to build",
    ]


@pytest.mark.parametrize(
    ("installed", "has"),
    [
        ({}, "neither"),
        ({"transformers": "5.23.0"}, "transformers 5.23.0 alone"),
        ({"torch": "2.11.0", "transformers": "4.57.1"}, "torch 2.11.0, transformers 4.57.1"),
    ],
)
def test_a_python_without_transformers_is_told_at_once(installed: Mapping[str, str], has: str, tmp_path: Path) -> None:
    python = write_python(tmp_path / "own", installed)
    with pytest.raises(CkptcheckError) as caught:
        ckptcheck.scan(TINY, headers_only=True, select=["DRY"], dry_load=f"transformers={python}")
    assert caught.value.message == f"a dry load needs torch and transformers 5, and {python} has {has}"
    assert caught.value.hint == "install both there, or name a Python that has them: --dry-load transformers=PYTHON"


def test_a_python_without_an_engine_is_told_at_once(tmp_path: Path) -> None:
    python = write_python(tmp_path / "own", {})
    with pytest.raises(CkptcheckError) as caught:
        ckptcheck.scan(TINY, headers_only=True, select=["DRY"], dry_load=f"vllm={python}")
    assert caught.value.message == f"{python} has no vllm"
    assert caught.value.hint == "install vllm there, or leave --dry-load vllm=PYTHON out after ckptcheck engine install"


def test_a_consumer_that_cannot_be_imported_is_no_verdict(tmp_path: Path) -> None:
    """The rule could not look, and says why: not a refusal, and not a traceback."""
    python = write_python(tmp_path / "own", {"torch": "2.11.0", "transformers": "5.23.0"})
    report = ckptcheck.scan(TINY, headers_only=True, select=["DRY"], dry_load=f"transformers={python}")
    ((code, reason),) = report.crashed
    assert (code, report.verdict) == ("DRY001", "incomplete")
    assert reason.startswith("transformers could not be asked: dry load by transformers could not start: ")
    assert "No module named" in reason


BOUNDS = """
import errno, os, socket, sys
from ckptcheck_worker.outside_files import OutsideRead, require_inside, stay_inside

inside, outside = sys.argv[1:]
stay_inside(inside)
print(open(os.path.join(inside, "config.json")).read())
import wave  # libraries are read later too
open("scratch", "w").close()
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname()).close()

def try_to(what):
    try:
        what()
    except OutsideRead as refused:
        print(refused.errno == errno.EACCES and refused.filename)

secret = os.path.join(outside, "secret.json")
os.symlink(secret, "link")
for what in (
    lambda: open(secret), lambda: os.open(secret, os.O_RDONLY), lambda: open("link"), lambda: os.listdir(outside),
    lambda: os.scandir(outside), lambda: open(os.path.join(inside, "config.json"), "a"), lambda: open(outside + "/new", "x"),
    lambda: require_inside(secret), lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
):
    try_to(what)
try:
    open(os.path.join(outside, "absent"))
except FileNotFoundError:
    print("absent")
"""
"""What the process of a dry load may open; it runs in a working folder of its own."""


def test_a_dry_load_opens_nothing_outside_the_checkpoint(tmp_path: Path) -> None:
    inside, outside, work = (tmp_path / name for name in ("inside", "outside", "work"))
    for folder in (inside, outside, work):
        folder.mkdir()
    (inside / "config.json").write_text("own", encoding="utf-8")
    (outside / "secret.json").write_text("secret", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", BOUNDS, str(inside), str(outside)],
        cwd=work, env={**os.environ, "PYTHONPATH": str(WORKER_FOLDER), "TMPDIR": str(work)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    secret = str(outside / "secret.json")
    expected = [
        "own",
        secret,
        secret,
        "link",
        str(outside),
        str(outside),
        str(inside / "config.json"),
        f"{outside}/new",
        secret,
    ]
    assert (ran.stdout.splitlines(), ran.stderr) == ([*expected, "192.0.2.1", "absent"], "")
    assert [path.name for path in outside.iterdir()] == ["secret.json"]


OPENED_BY_C = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[3])
from ckptcheck_worker.outside_files import stay_inside

inside, outside = sys.argv[1:3]
stay_inside(inside)
c = ctypes.CDLL(None)

def opens(path, flags=os.O_RDONLY):
    return c.open(os.fsencode(path), flags, 0o600) >= 0

print(opens(inside + "/config.json"), opens("/dev/null", os.O_WRONLY), opens("/etc/passwd"))
print(opens("scratch", os.O_WRONLY | os.O_CREAT))
print(c.rename(b"scratch", b"moved") == 0, c.mkdir(b"folder", 0o700) == 0)
print(opens(outside + "/secret.json"), opens(outside), opens(inside + "/config.json", os.O_WRONLY), opens("link"))
print(opens(outside + "/new", os.O_WRONLY | os.O_CREAT), c.mkdir(os.fsencode(outside + "/folder"), 0o700) == 0)
print(c.unlink(os.fsencode(outside + "/secret.json")) == 0, c.rename(os.fsencode(inside + "/config.json"), b"taken") == 0)
"""
"""What a library in C or Rust may open there: Python's audit events do not see it."""


@pytest.mark.skipif(landlock_version() < 2, reason="needs Landlock in the kernel")
def test_the_kernel_keeps_c_and_rust_inside_too(tmp_path: Path) -> None:
    inside, outside, work = (tmp_path / name for name in ("inside", "outside", "work"))
    for folder in (inside, outside, work):
        folder.mkdir()
    (inside / "config.json").write_text("own", encoding="utf-8")
    (outside / "secret.json").write_text("secret", encoding="utf-8")
    (work / "link").symlink_to(outside / "secret.json")
    ran = subprocess.run(
        [sys.executable, "-c", OPENED_BY_C, str(inside), str(outside), str(WORKER_FOLDER)],
        cwd=work, env={**os.environ, "TMPDIR": str(work)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    allowed = ["True True True", "True", "True True"]
    refused = ["False False False False", "False False", "False False"]
    assert (ran.stdout.splitlines(), ran.stderr) == ([*allowed, *refused], "")


def test_an_index_that_names_another_model_is_not_followed(tmp_path: Path) -> None:
    """transformers joins the folder with what the index names: an absolute path stays one."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    own, other = (Path(shutil.copytree(TINY, tmp_path / name)) for name in ("own", "other"))
    stored = str(other / "model.safetensors")
    (own / "model.safetensors").rename(own / "weights.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": stored}}
    (own / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    report = ckptcheck.scan(own, headers_only=True, select=["DRY"], dry_load="transformers")
    ((_, reason),) = report.crashed
    assert reason.endswith(f"could not be asked: it would open {stored}, which is no part of the checkpoint")


@pytest.mark.engine
def test_a_speculator_that_names_another_model_is_not_followed(tmp_path: Path) -> None:
    """vLLM loads the model that a speculator's config names in its place."""
    needs_engine("vllm")
    own, other = (Path(shutil.copytree(TINY, tmp_path / name)) for name in ("own", "other"))
    config = json.loads((own / "config.json").read_text(encoding="utf-8"))
    config["speculators_model_type"] = "eagle3"
    config["transformer_layer_config"] = {"model_type": "llama"}
    config["speculators_config"] = {
        "algorithm": "eagle3",
        "verifier": {"name_or_path": str(other), "architectures": ["LlamaForCausalLM"]},
        "proposal_methods": [{"speculative_tokens": 3, "proposal_type": "greedy"}],
        "default_proposal_method": "greedy",
    }
    (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report = ckptcheck.scan(own, headers_only=True, select=["DRY"], dry_load="vllm")
    ((_, reason),) = report.crashed
    assert f"it would open {other}/config.json, which is no part of the checkpoint" in reason


def write_python(folder: Path, installed: Mapping[str, str]) -> Path:
    """Make a Python that says that it has some packages, by their versions, and has none."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version in installed.items():
        metadata = site / f"{name}-{version}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    return folder / "bin/python"


@pytest.mark.engine
@pytest.mark.parametrize("name", ["transformers", "vllm", "sglang"])
def test_a_config_that_is_no_json_is_refused(name: str, tmp_path: Path) -> None:
    if name == "transformers":
        pytest.importorskip("transformers")
    else:
        needs_engine(name)
    folder = write_edited(tmp_path / "model", lose_norm)
    (folder / "config.json").write_text('{"architectures":', encoding="utf-8")
    report = ckptcheck.scan(folder, headers_only=True, select=["DRY"], dry_load=name)
    assert not report.crashed
    (message,) = list_messages(report)
    assert " refuses to load it: " in message
