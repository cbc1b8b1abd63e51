"""Holds a dialect's verdicts against a consumer's own answers."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from ckptcheck.dialects import DIALECTS
from ckptcheck.dialects.base import Module, Question, Refused, Structure, Unknown, Verdict
from ckptcheck.dialects.structures import renaming

HERE = Path(__file__).parent


def ours(consumer: str, asked: dict[str, Any]) -> Any:
    """What the dialect says, in the words of the scripts that ask: a bool, "refused" or "unknown" for each module."""
    rules = asked["rename"]
    shape = Structure(
        {name: tuple(parts) for name, parts in asked["fused"].items()},
        renaming(rules, once=consumer == "sglang") if rules else str,
        tuple(asked.get("skipped", ())),
    )
    question = Question(asked["method"], asked["config"], shape, frozenset(asked["packed"]), frozenset(asked["plain"]))
    try:
        reader = DIALECTS[consumer].read(question)
    except Refused:
        return "refused"
    except Unknown:
        return "unknown"

    def judge(module: dict[str, Any]) -> Any:
        shards = tuple(module.get("shards") or ("gate_proj", "up_proj", "down_proj"))
        try:
            verdict: Verdict = reader.judge(Module(module["name"], module["kind"], module["role"], shards=shards))
        except Refused:
            return "refused"
        except Unknown:
            return "unknown"
        return verdict.quantized

    return [judge(module) for module in asked["modules"]]


def differences(consumer: str, asked: list[dict[str, Any]], answers: list[Any]) -> tuple[list[str], Counter[str]]:
    """Return what differs, and how many verdicts agreed by what they were."""
    found: list[str] = []
    agreed: Counter[str] = Counter()
    for question, answer in zip(asked, answers, strict=True):
        said = ours(consumer, json.loads(json.dumps(question)))
        where = f"{question['method']} {json.dumps(question['config'])} fused={list(question['fused'])} {question['rename']}"
        if said == "unknown":
            agreed["unknown"] += 1
            continue
        if isinstance(answer, dict) and isinstance(said, list) and {"refused"} <= {*said} <= {"refused", False}:
            said = "refused"  # it raises while it renames, or as soon as a layer asks
        if isinstance(answer, dict) or said == "refused":
            # an engine that only raises when the first layer asks is refused as a whole here
            whole = isinstance(answer, dict) or not any(isinstance(each, bool) for each in answer if each is not False)
            if said == "refused" and whole:
                agreed["refused"] += 1
            else:
                found.append(f"{where}\n  the consumer: {answer}\n  ckptcheck: {said}")
            continue
        for module, theirs, mine in zip(question["modules"], answer, said, strict=True):
            same = mine == theirs if isinstance(theirs, bool) else mine == "refused"
            if same or mine == "unknown":
                agreed[f"{question['method']} {mine}"] += 1
            else:
                found.append(f"{where}\n  {module}\n  the consumer: {theirs}\n  ckptcheck: {mine}")
    return found, agreed


def ask(python: Path, script: str, asked: list[dict[str, Any]], folder: Path, variables: Any = None) -> list[Any]:
    """Ask the real code, in its own interpreter, in one go."""
    path = folder / "questions.json"
    path.write_text(json.dumps(asked))
    command = [str(python), str(HERE / script), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert result.returncode == 0, result.stderr[-3000:]
    answers: list[Any] = json.loads(result.stdout)
    return answers
