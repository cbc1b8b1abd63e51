"""Doors whose input is text: configurations, tokenizers, templates, manifests, records, rollouts and more.

Each door has sound documents. A seed changes their structure (`tests.fuzz.mutate`: values of another type, absurd numbers, keys
that stand twice, nesting without end) or their bytes, and reads the result as the command does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.manifest import read_manifest
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.printed_log import open_printed_log
from ckptcheck.linter.baseline import read_baseline
from ckptcheck.linter.rule import Rule
from ckptcheck.linter.runner import run_rules
from ckptcheck.linter.settings import load_settings
from ckptcheck.linter.stored_report import load_report
from ckptcheck.live.gate.gate_file import read_gate_request
from ckptcheck.rollouts import read_rollouts
from ckptcheck.rollouts.convert import convert
from ckptcheck.rollouts.metrics.noise_floor import read_noise_floor
from ckptcheck.rollouts.prompts import read_prompts_file
from ckptcheck.runs.history.history import open_history
from tests.factories.history_cases import build_history
from tests.fuzz import CHECKPOINTS, RULES, damaged, draft, mutate, random_text, written
from tests.fuzzing.batches import copy_flat
from tests.paths import DATA

ROLLOUTS = DATA / "rollouts"
WORDS = [
    "a",
    "0x" + "f" * 5000,
    "job.yaml",
    "MEG001",
    "CFG*",
    "info",
    "10 min",
    "1e400 s",
    "~root",
    "../..",
    "\0",
    "🙂",
    "x" * 5000,
]
RULE_KINDS = ("checkpoint", "config", "layers", "index", "tokenizer", "quantization")


@cache
def rules_of(*kinds: str) -> list[Rule]:
    """The rules on these kinds of evidence."""
    return [rule for rule in RULES if rule.on in kinds]


def require_no_crash(evidence: Any, *kinds: str) -> None:
    """Run all rules of these kinds. Raises AssertionError where one crashes."""
    crashed = [
        (code, why) for code, why in run_rules(evidence, rules_of(*kinds)).crashed if not why.startswith("could not ")
    ]
    assert not crashed, crashed


def change_json(raw: bytes, dice: random.Random) -> bytes:
    """Change a JSON document, at times by a piece that stands thousands of times or is nested without end."""
    if dice.random() > 0.03:
        return random_text(json.loads(raw), dice)
    node = draft(json.loads(raw))
    mutate(node, dice)
    text = written(node)
    at = text.find(dice.choice('"[{,:'), dice.randrange(len(text)))
    piece = dice.choice(["[", '{"a":', '"a":', "[],", "1,", '"a",', "9", "\\u0000", "x", "-", "{},"])
    return (text[: at + 1] + piece * dice.choice([100, 5000, 60_000]) + text[at + 1 :]).encode("utf-8", "surrogatepass")


def change_lines(raw: bytes, dice: random.Random) -> bytes:
    """Change some lines of JSON."""
    lines = raw.splitlines()
    for _ in range(dice.choice([1, 1, 2, 4])):
        place = dice.randrange(len(lines))
        with suppress(ValueError, RecursionError):
            lines[place] = change_json(lines[place], dice)
        if dice.random() < 0.2:
            lines[place] = dice.choice([b"", b"{", b"{}", b"null", damaged(lines[place], dice), lines[place] * 2])
    joined = dice.choice([b"\n"] * 8 + [b"\r\n", b"\n\n", b" "]).join(lines)
    return damaged(joined, dice) if dice.random() < 0.1 else joined


def change_words(raw: bytes, dice: random.Random) -> bytes:
    """Change a text by words of its own and by hostile ones."""
    text = raw.decode()
    for _ in range(dice.choice([1, 1, 2, 5])):
        at = dice.randrange(len(text) + 1)
        own = text[(begin := dice.randrange(len(text) + 1)) : begin + dice.choice([1, 5, 40])]
        new = dice.choice(
            [*WORDS, own, own, own * dice.choice([1, 300]), *'"[]{}=#.\n', "[[", "'''", '"""', "1e999", "0x", "inf"]
        )
        text = text[:at] + new + text[at + dice.choice([0, 0, 1, 8, len(own)]) :]
    return text[:400_000].encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Door:
    """Sound documents (name of a file → content), how they are changed, and what reads them."""

    documents: Callable[[], Mapping[str, bytes]]
    change: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], object]

    def check(self, seed: int, folder: Path) -> None:
        """Change a document by a seed, and read it. What is refused with a sentence is well; raises for anything else."""
        dice = random.Random(seed)
        name, raw = dice.choice(sorted(_read_once(self).items()))
        path = folder / name
        path.write_bytes(self.change(raw, dice))
        with suppress(CkptcheckError):
            self.read(path)


@cache
def _read_once(door: Door) -> Mapping[str, bytes]:
    return door.documents()


def _manifests() -> dict[str, bytes]:
    path = CHECKPOINTS / "tiny-llama"
    import tempfile

    import ckptcheck

    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "m.json"
        ckptcheck.manifest(path, written)
        return {"m.json": written.read_bytes()}


def _baselines() -> dict[str, bytes]:
    finding = {"code": "ST001", "file": "f", "key": "k", "message": "m"}
    return {"b.json": json.dumps({"schema": "ckptcheck-baseline/1", "findings": [finding] * 3}).encode()}


def _settings() -> dict[str, bytes]:
    text = 'select = ["ST", "CFG*"]\nfail-on = "warning"\nrules = ["own"]\n[ignore]\nIDX007 = "why"\n[severity]\nVAL001 = "info"\n'
    project = "[tool.ckptcheck]\n" + text.replace("[ignore]", "[tool.ckptcheck.ignore]").replace(
        "[severity]", "[tool.ckptcheck.severity]"
    )
    gate = 'job = ["job.yaml", "a=b"]\ndeadline = "10 min"\nstages = ["preflight", "scan"]\n[scan]\nvalues = true\n'
    return {"ckptcheck.toml": text.encode(), "pyproject.toml": project.encode(), "gate.toml": gate.encode()}


def _read_settings(path: Path) -> None:
    if path.name == "gate.toml":
        read_gate_request([str(path)])
    else:
        settings = load_settings(path)
        settings.ignored_codes(RULES)
        settings.severity_codes(RULES)


def _records() -> dict[str, bytes]:
    import tempfile

    syncs = [
        {"probe": 0.01, "floor": 0.001},
        {"same": ["*"]},
        {"stale": ["*norm*"], "ok": False},
        {"loss": 0.5, "version": "3"},
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl"
        build_history({"title": "", "syncs": syncs}, path)
        return {"r.jsonl": path.read_bytes()}


def _logs() -> dict[str, bytes]:
    number = ["0.25", "nan", "-1e-05"]
    slime = "".join(
        f"rollout {step}: {{'rollout/log_probs': -0.4, 'rollout/ref_log_probs': {value}}}\nx - step {step}: {{'train/loss': 1,"
        f" 'train/kl_loss': {value}, 'train/train_rollout_logprob_abs_diff': 0.01, 'train/grad_norm': {value}}}\n"
        for step, value in enumerate(number)
    )
    verl = "".join(
        f"step:{step} - actor/pg_loss:{value} - rollout_corr/k3_kl:1e-4\n" for step, value in enumerate(number)
    )
    return {"slime.log": slime.encode(), "verl.log": verl.encode()}


def _read_log(path: Path) -> None:
    if (log := open_printed_log(path)) is not None:
        require_no_crash(log, "history")


def _reports() -> dict[str, bytes]:
    import ckptcheck

    report = ckptcheck.scan(CHECKPOINTS / "tiny-llama")
    return {"r.json": json.dumps(report.to_dict()).encode()}


def _rollouts() -> dict[str, bytes]:
    own = {f.name: f.read_bytes() for f in sorted(ROLLOUTS.glob("answers/*-recorded.jsonl"))}
    return {name: raw[:60_000].rpartition(b"\n")[0] for name, raw in own.items()}


def measure(path: Path) -> None:
    """Read rollouts of our own and compute their metrics."""
    from ckptcheck.rollouts.metrics.logprob_metrics import compute_metrics

    rollouts = read_rollouts(path)
    if not rollouts.defects and {"engine_logprobs", "trainer_logprobs"} <= rollouts.columns.keys():
        compute_metrics(rollouts)


def _answers() -> dict[str, bytes]:
    files = [*ROLLOUTS.glob("answers/*.json"), *ROLLOUTS.glob("answers/*.txt"), ROLLOUTS / "pipelinerl-58d3934.jsonl"]
    return {file.name: file.read_bytes()[:200_000] for file in files}


def _change_answer(raw: bytes, dice: random.Random) -> bytes:
    with suppress(ValueError, RecursionError):
        return change_json(raw, dice)
    lines = raw.split(b"\n")
    for _ in range(dice.choice([1, 2, 5])):
        place = dice.randrange(len(lines))
        begin, data, rest = lines[place].partition(b"data: ")
        with suppress(ValueError, RecursionError):
            lines[place] = (
                begin + data + change_json(rest if data else begin, dice) if data else change_json(begin, dice)
            )
    return b"\n".join(lines)


def _prompts() -> dict[str, bytes]:
    rows: list[dict[str, Any]] = [
        {"tokens": [1, 2, 3]},
        {"messages": [{"role": "user", "content": "a"}]},
        {"prompt": "b"},
        {"text": "c"},
    ]
    return {"p.jsonl": "\n".join(json.dumps(row) for row in rows).encode()}


class _Reader:
    """Tokenizes nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: (1, 2)


def _floors() -> dict[str, bytes]:
    form = {
        "format": "ckptcheck-floor/1",
        "model": "m",
        "metrics": {"mean_abs": 0.1, "kl": 0.001},
        "vocabulary": 9,
        "tokens": 100,
    }
    return {"f.json": json.dumps(form).encode()}


DOORS = {
    "manifest": Door(_manifests, change_json, read_manifest),
    "baseline": Door(_baselines, change_json, read_baseline),
    "settings": Door(_settings, change_words, _read_settings),
    "record": Door(_records, change_lines, lambda path: require_no_crash(open_history(path), "history")),
    "log": Door(_logs, change_words, _read_log),
    "report": Door(_reports, change_json, lambda path: _load_report(path)),
    "rollouts": Door(_rollouts, change_lines, measure),
    "answers": Door(_answers, _change_answer, lambda path: convert([path])),
    "prompts": Door(_prompts, change_lines, lambda path: read_prompts_file(path, _Reader())),  # type: ignore[arg-type]
    "floor": Door(_floors, change_json, read_noise_floor),
}
"""Doors of one document."""


def _load_report(path: Path) -> None:
    with suppress(ValueError, RecursionError):  # as its readers do
        form = json.loads(path.read_bytes())
        if isinstance(form, dict):
            load_report(form).to_dict()


def _change_checkpoint(seed: int, folder: Path, bases: tuple[str, ...], endings: tuple[str, ...]) -> Path:
    dice = random.Random(seed)
    path = copy_flat(CHECKPOINTS / dice.choice(bases), folder / "ckpt")
    names = sorted(file.name for file in path.iterdir() if file.name.endswith(endings))
    for name in dice.sample(names, min(len(names), dice.choice([1, 1, 2]))):
        raw = (path / name).read_bytes()
        change = change_json if name.endswith(".json") else change_words
        (path / name).write_bytes(change(raw, dice))
    return path


BASES = tuple(sorted(path.name for path in CHECKPOINTS.iterdir()))


REAL_CHILDREN = 50
"""One input of so many is read with the real child processes of the tokenizer, which take a third of a second."""


def check_config(seed: int, folder: Path) -> None:
    """Change configurations of a checkpoint, and run every rule that reads headers and configurations."""
    if seed % REAL_CHILDREN:
        _play_children(random.Random(seed))
    path = _change_checkpoint(seed, folder, BASES, ("config.json",))
    with suppress(CkptcheckError):
        require_no_crash(open_checkpoint(str(path), jobs=1), *RULE_KINDS)


def check_tokenizer(seed: int, folder: Path) -> None:
    """Change a tokenizer's files; the child processes are played by made-up answers, since one takes a tenth of a second."""
    dice = random.Random(seed)
    if seed % REAL_CHILDREN:
        _play_children(dice)
    path = _change_checkpoint(
        seed, folder, ("tiny-chat",), ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    )
    if dice.random() < 0.3:
        (path / "chat_template.jinja").write_bytes(random_template(dice))
    if dice.random() < 0.1:
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "tool.jinja").write_bytes(random_template(dice))
    if dice.random() < 0.2:
        (path / dice.choice(["special_tokens_map.json", "added_tokens.json", "vocab.json"])).write_bytes(
            change_json(b'{"eos_token": "<|im_end|>", "a": 5, "b": {"content": "x"}}', dice)
        )
    with suppress(CkptcheckError):
        require_no_crash(open_checkpoint(str(path), jobs=1), *RULE_KINDS)


def _play_children(dice: random.Random) -> None:
    from ckptcheck.checkpoint import chat_template, vocabulary

    chat_template.run_sandboxed = vocabulary.run_sandboxed = lambda *_, **__: _made_up_answer(dice)  # type: ignore[attr-defined]


PIECES = [
    "{% for m in messages %}", "{% endfor %}", "{{ m['content'] }}", "{{ m.role }}", "{% if tools %}", "{% else %}",
    "{% endif %}", "{% set x = x ~ x %}", "{% set ns = namespace(a=1) %}", "<|im_start|>", "<|im_end|>", "{{ bos_token }}",
    "{% generation %}", "{% endgeneration %}", "{{ raise_exception('no') }}", "{{ messages | tojson }}", "{#", "#}", "{{", "}}",
    "{% for i in range(99999) %}", "{% macro f(x) %}", "{% endmacro %}", "{{ f(f) }}", "{{ ''.__class__ }}", "{% include 'x' %}",
    "\0", "🙂", "<" * 999, "'" * 50,
]  # fmt: skip


def random_template(dice: random.Random) -> bytes:
    """Put pieces of templates together, at times one of them thousands of times."""
    pieces = [dice.choice(PIECES) * dice.choice([1] * 20 + [500, 20_000]) for _ in range(dice.choice([1, 3, 8, 20]))]
    return "".join(pieces)[:800_000].encode("utf-8", "surrogatepass")


LINES: list[dict[str, Any]] = [
    {"template": "", "literals": "a<|im_end|>"}, {"template": "", "conversation": "asked", "text": "Zebras ask alpha"},
    {"template": "", "conversation": "answered", "refused": "no"}, {"template": "", "broken": "x", "line": 3}, {"loaded": True},
    {"template": "", "escapes": ["__class__"]}, {"template": "", "conversation": "ordered", "bound": "memory"}, {"done": True},
    {"template": "", "conversation": "asked, no prompt", "failed": "TypeError: x"}, {"ids": [1, 2]}, {"refused": "Exception: x"},
]  # fmt: skip


def _made_up_answer(dice: random.Random) -> Any:
    from ckptcheck.checkpoint.sandbox import SandboxResult

    return SandboxResult(
        tuple(dice.sample(LINES, dice.randrange(len(LINES)))), dice.choice([None, None, "it wrote without end"])
    )
