"""Dumps in the layouts of other tools, made of a real model's forward, are read and compared point by point."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest

from ckptcheck.checkpoint.torch_file import read_torch_file
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.localize.dumps import compare_dumps
from tests.factories.localize_cases import build_localization

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "localization"]
PROMPT = list(range(40, 60))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = live.write("llama", tmp_path_factory.mktemp("dumps") / "llama")
    return folder, transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def forward(model: Any, edit: Any = None) -> dict[str, tuple[Any, Any]]:
    """Return module → first input and output. edit: called with name and output, may return another output."""
    seen: dict[str, tuple[Any, Any]] = {}

    def hook(name: str) -> Any:
        def keep(module: Any, arguments: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            changed = edit(name, first) if edit else None
            if torch.is_tensor(first):
                first = changed if changed is not None else first
                seen[name] = (
                    arguments[0].clone() if arguments and torch.is_tensor(arguments[0]) else None,
                    first.clone(),
                )
            return changed

        return keep

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    with torch.no_grad():
        model(torch.tensor([PROMPT]))
    for handle in handles:
        handle.remove()
    return seen


def msprobe(seen: dict[str, tuple[Any, Any]], folder: Path, prefix: str = "") -> Path:
    """Write them as PrecisionDebugger does: task tensor, level L0."""
    place = folder / "step0" / "rank0"
    (place / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, Any] = {}
    for name, sides in seen.items():
        call = f"Module.{prefix}{name}.SomeClass.forward.0"
        entry: dict[str, Any] = {"input_args": [], "input_kwargs": {}, "output": []}
        for key, short, value in (("input_args", "input", sides[0]), ("output", "output", sides[1])):
            if value is not None:
                file = f"{call}.{short}.0.pt"
                torch.save(value, place / "dump_tensor_data" / file)
                entry[key] = [{"type": "torch.Tensor", "shape": list(value.shape), "data_name": file}]
        data[call] = entry
    told = {"task": "tensor", "level": "L0", "framework": "pytorch", "dump_data_dir": "x", "data": data}
    (place / "dump.json").write_text(json.dumps(told))
    return folder


def joined(seen: dict[str, tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield outputs as an engine's modules give them: flat, q, k, v and gate, up joined."""
    for name, (_, value) in seen.items():
        flat = value[0] if value.dim() == 3 else value
        if name.endswith((".k_proj", ".v_proj", ".up_proj")):
            continue
        if name.endswith(".q_proj"):
            at = name.removesuffix("q_proj")
            yield f"{at}qkv_proj", torch.cat([seen[f"{at}{which}_proj"][1][0] for which in "qkv"], -1)
        elif name.endswith(".gate_proj"):
            at = name.removesuffix("gate_proj")
            yield f"{at}gate_up_proj", torch.cat([seen[f"{at}{which}_proj"][1][0] for which in ("gate", "up")], -1)
        else:
            yield name, flat


def passes(seen: dict[str, tuple[Any, Any]], folder: Path) -> Path:
    """Write them as --debug-tensor-dump-output-folder does, after a pass of a warm-up without layers."""
    place = folder / "TP0_PP0_Rank0_pid77"
    place.mkdir(parents=True)
    torch.save({"forward_batch_info": torch.zeros(1)}, place / "Pass00000.pt")
    torch.save(dict(joined(seen)), place / "Pass00001.pt")
    return folder


def tensors(seen: dict[str, tuple[Any, Any]], folder: Path) -> Path:
    """Write them as dumper.py does, a second step as well."""
    folder.mkdir()
    for step in (0, 1):
        for index, (name, value) in enumerate(joined(seen)):
            tags = f"step={step}___rank=0___dump_index={index}___name=non_intrusive__{name}.output___layer_id=0"
            torch.save({"value": value * (1 + step), "meta": {"step": step}}, folder / f"{tags}.pt")
    return folder


def judged(here: Path, there: Path, source: Path | None = None) -> Report:
    return run_rules(compare_dumps(here, there, source, "float32", None), RULES)


@pytest.mark.parametrize("other", [passes, tensors])
def test_equal_dumps_of_two_tools_agree(model: Any, other: Any, tmp_path: Path) -> None:
    folder, net = model
    seen = forward(net)
    report = judged(msprobe(seen, tmp_path / "trainer", "module.actor."), other(seen, tmp_path / "engine"), folder)
    assert [finding.code for finding in report.findings] == ["LOC002"]  # the inputs, which SGLang's dumps have not
    assert report.counts["tensors"] == 2 * 10 + 3


@pytest.mark.parametrize("other", [passes, tensors])
def test_the_module_that_differs_in_a_dump_is_named(model: Any, other: Any, tmp_path: Path) -> None:
    folder, net = model
    right = forward(net)

    def edit(name: str, output: Any) -> Any:
        return output * 1.01 if name == "model.layers.1.mlp.down_proj" else None

    report = judged(msprobe(right, tmp_path / "trainer"), other(forward(net, edit), tmp_path / "engine"), folder)
    found = {finding.code: finding for finding in report.findings}
    assert found["LOC001"].key == "model.layers.1.mlp.down_proj"
    assert "engine: 1.01 times what it should be" in found["LOC001"].message


def test_without_a_config_joined_projections_are_not_guessed(model: Any, tmp_path: Path) -> None:
    _, net = model
    seen = forward(net)
    report = judged(msprobe(seen, tmp_path / "trainer"), passes(seen, tmp_path / "engine"))
    assert report.counts["tensors"] == 2 * 7 + 3
    assert "model.layers.0.self_attn.q_proj" in report.findings[0].names


def test_a_last_token_that_one_side_lacks_is_left_out(model: Any, tmp_path: Path) -> None:
    _, net = model
    seen = forward(net)
    cut = {name: (None, value[:, :-1] if value.dim() == 3 else value[:-1]) for name, (_, value) in seen.items()}
    cut.pop("lm_head")
    report = judged(msprobe(seen, tmp_path / "here"), msprobe(cut, tmp_path / "there"))
    assert [finding.code for finding in report.findings] == ["LOC007", "LOC002"]
    assert report.findings[0].message.startswith("here has 1 token that there has not")


@pytest.mark.parametrize("second", ["there/dump", "here/dump"])
def test_dumps_of_one_name_are_told_apart(second: str, tmp_path: Path) -> None:
    for folder in ("here/dump/step0/rank0", "there/dump/step0/rank0"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "dump.json").write_text('{"data": {}}')
    report = judged(tmp_path / "here/dump", tmp_path / second)
    assert ([finding.code for finding in report.findings], report.crashed) == (["LOC002"], ())


def test_folders_that_hold_no_dump(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "empty", "holds no dump that is known"), (tmp_path / "absent", "is no folder")):
        with pytest.raises(CkptcheckError, match=words):
            judged(path, path)


@pytest.mark.parametrize(
    "told", ["{", "[]", '{"data": 3}', '{"data": {"Module.a.B.forward.0": {"output": [{"Max": 1}]}}}']
)
def test_a_broken_dump_json_is_one_sentence(told: str, tmp_path: Path) -> None:
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    (tmp_path / "step0" / "rank0" / "dump.json").write_text(told)
    with pytest.raises(CkptcheckError, match=r"is no dump\.json of msProbe|has statistics only|no dump"):
        judged(tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["../../../secret.pt", "a/b.pt", "link.pt"])
def test_no_name_leads_out_of_the_dump(name: str, tmp_path: Path) -> None:
    place = tmp_path / "step0" / "rank0"
    (place / "dump_tensor_data").mkdir(parents=True)
    torch.save(torch.ones(2, 2), tmp_path / "secret.pt")
    (place / "dump_tensor_data" / "link.pt").symlink_to(tmp_path / "secret.pt")
    call = {"output": [{"data_name": name}]}
    (place / "dump.json").write_text(json.dumps({"data": {"Module.model.norm.RMSNorm.forward.0": call}}))
    with pytest.raises(CkptcheckError, match="which is no file beside it"):
        judged(tmp_path, tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "bool", "uint8"])
@pytest.mark.parametrize("kind", ["plain", "transposed", "sliced", "scalar", "empty"])
def test_tensors_are_read_as_torch_reads_them(dtype: str, kind: str, tmp_path: Path) -> None:
    base = (torch.arange(24).reshape(4, 6) % 2 if dtype == "bool" else torch.arange(24).reshape(4, 6)).to(
        getattr(torch, dtype)
    )
    made = {"plain": base, "transposed": base.t(), "sliced": base[1:, ::2], "scalar": base[0, 0], "empty": base[:0]}[
        kind
    ]
    torch.save({"x": [made], "n": 3, "t": (1, "a")}, tmp_path / "x.pt")
    held = read_torch_file(tmp_path / "x.pt")
    assert (held["n"], held["t"]) == (3, (1, "a"))
    expected = made.float() if dtype == "bfloat16" else made
    assert held["x"][0].shape == tuple(made.shape)
    np.testing.assert_array_equal(held["x"][0], expected.numpy())


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "uint8"])
def test_tensors_of_a_plain_pickle_are_read(dtype: str, tmp_path: Path) -> None:
    whole = (torch.arange(24).reshape(4, 6) % 2 if dtype == "bool" else torch.arange(24).reshape(4, 6)).to(
        getattr(torch, dtype)
    )
    content = {"whole": whole, "part": whole[1:, ::2], "turned": whole.T, "empty": whole[:0], "same": [whole, whole]}
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(content))
    found = read_torch_file(tmp_path / "x.pkl")
    for name in ("whole", "part", "turned", "empty"):
        assert np.array_equal(found[name], content[name].to(torch.float32).numpy()), name
    assert np.array_equal(found["same"][1], whole.to(torch.float32).numpy())
    raw = (tmp_path / "x.pkl").read_bytes()
    draw = np.random.default_rng(0)
    for _ in range(200):
        broken = bytearray(raw)
        for at in draw.integers(0, len(raw), 3):
            broken[at] = int(draw.integers(0, 256))
        (tmp_path / "y.pkl").write_bytes(broken)
        with contextlib.suppress(CkptcheckError):
            read_torch_file(tmp_path / "y.pkl")


@pytest.mark.parametrize("wrap", [lambda x: [x] * 9, lambda x: (x,) * 9, lambda x: dict.fromkeys(range(9), x)])
def test_containers_that_share_each_other_come_to_an_end(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    value: Any = [None]
    for _ in range(40):
        value = wrap(value)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(value))
    assert (tmp_path / "x.pkl").stat().st_size < 4000
    with pytest.raises(CkptcheckError, match="it repeats its containers without end"):
        read_torch_file(tmp_path / "x.pkl")


def test_nothing_in_a_torch_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Bomb()}, tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(Bomb()))
    for name, words in (("x.pt", "which plain data does not need: it was not loaded"), ("y.pt", "it was not loaded")):
        with pytest.raises(CkptcheckError, match=words):
            read_torch_file(tmp_path / name)
    torch.save(torch.ones(1).expand(1 << 40), tmp_path / "big.pt")
    with pytest.raises(CkptcheckError, match="repeats its elements"):
        read_torch_file(tmp_path / "big.pt")
    assert not (tmp_path / "executed").exists()


def test_a_dump_of_no_tokens_is_compared_with_nothing(model: Any, tmp_path: Path) -> None:
    folder, net = model
    seen = forward(net)
    none = {name: (None, value[:, :0]) for name, (_, value) in seen.items()}
    for here, there in ((seen, none), (none, seen), (none, none)):
        place = tmp_path / f"{here is seen}{there is seen}"
        report = judged(msprobe(here, place / "here"), msprobe(there, place / "there"), folder)
        assert "LOC002" in {finding.code for finding in report.findings}
        assert not report.crashed


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_logits_are_compared_without_the_padding_of_the_vocabulary(factor: float, model: Any, tmp_path: Path) -> None:
    """Megatron pads the vocabulary, and with it the logits."""
    folder, net = model
    seen = forward(net)
    padded = dict(seen)
    logits = seen["lm_head"][1]
    padded["lm_head"] = (seen["lm_head"][0], torch.cat([logits * factor, torch.zeros(*logits.shape[:2], 96)], -1))
    report = judged(msprobe(padded, tmp_path / "trainer"), msprobe(seen, tmp_path / "engine"), folder)
    found = [(finding.code, finding.key) for finding in report.findings]
    assert found == ([] if factor == 1 else [("LOC001", "lm_head")])


@pytest.mark.parametrize("is_there", [True, False])
def test_a_norm_that_the_projection_holds_is_named_as_a_suspect(is_there: bool) -> None:
    norm = {"point": "model.layers.1.input_layernorm", "how": "absent"}
    changes = [{"point": f"model.layers.1.self_attn.{name}_proj", "how": "noise"} for name in "qkv"]
    (found,) = [
        finding
        for finding in run_rules(build_localization({"do": changes if is_there else [norm, *changes]}), RULES).findings
        if finding.code == "LOC001"
    ]
    assert str(found.hint).endswith(
        "; what goes in agrees" if is_there else "; and at input_layernorm, which was not compared"
    )


@pytest.mark.parametrize(
    ("point", "missing", "end"),
    [
        ("core", (), "; what goes in agrees"),
        ("core", ("q_proj", "k_proj", "v_proj"), "self_attn.v_proj, which were not compared"),
        ("core", ("v_proj",), "; and at self_attn.v_proj, which was not compared"),
        # an engine's dump without a checkpoint: v may be the fault, and o_proj is the first that both have
        ("o_proj", ("core", "v_proj"), "; and at self_attn.core, self_attn.v_proj, which were not compared"),
        ("q_norm", ("q_proj",), "; and at self_attn.q_proj, which was not compared"),
    ],
)
def test_a_hint_says_of_its_inputs_only_what_was_compared(point: str, missing: tuple[str, ...], end: str) -> None:
    absent = [{"point": f"model.layers.1.self_attn.{name}", "how": "absent"} for name in missing]
    evidence = build_localization({"do": [*absent, {"point": f"model.layers.1.self_attn.{point}", "how": "later"}]})
    (found,) = [finding for finding in run_rules(evidence, RULES).findings if finding.code == "LOC001"]
    assert str(found.hint).endswith(end)
