"""Compares ckptcheck's decisions with a consumer's own answers."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from ckptcheck.consumers import CONSUMERS
from ckptcheck.consumers.base import ConsumerError, ConsumerInput, Decision, ModelStructure, Module, UnknownBehavior
from ckptcheck.consumers.structures import make_rename

HERE = Path(__file__).parent


def answer_as_consumer(consumer: str, asked: dict[str, Any]) -> Any:
    """Return ckptcheck's answers, in the words of the scripts that ask: a bool, "refused" or "unknown" for each module."""
    rules = asked["rename"]
    shape = ModelStructure(
        {name: tuple(parts) for name, parts in asked["fused"].items()},
        make_rename(rules, once=CONSUMERS[consumer].structures.renames_once) if rules else str,
        tuple(asked.get("skipped", ())),
    )
    question = ConsumerInput(
        asked["method"], asked["config"], shape, frozenset(asked["packed"]), frozenset(asked["plain"])
    )
    try:
        reader = CONSUMERS[consumer].read_config(question)
    except ConsumerError:
        return "refused"
    except UnknownBehavior:
        return "unknown"

    def judge(module: dict[str, Any]) -> Any:
        shards = tuple(module.get("shards") or ("gate_proj", "up_proj", "down_proj"))
        try:
            verdict: Decision = reader.decide(
                Module(module["name"], module["kind"], module["role"], expert_projections=shards)
            )
        except ConsumerError:
            return "refused"
        except UnknownBehavior:
            return "unknown"
        return verdict.quantized

    return [judge(module) for module in asked["modules"]]


def differences(consumer: str, asked: list[dict[str, Any]], answers: list[Any]) -> tuple[list[str], Counter[str]]:
    """Return what differs, and how many answers agree, by method and answer."""
    lines: list[str] = []
    agreed: Counter[str] = Counter()
    for question, answer in zip(asked, answers, strict=True):
        ours = answer_as_consumer(consumer, json.loads(json.dumps(question)))
        where = f"{question['method']} {json.dumps(question['config'])} fused={list(question['fused'])} {question['rename']}"
        if ours == "unknown":
            agreed["unknown"] += 1
            continue
        if isinstance(answer, dict) and isinstance(ours, list) and {"refused"} <= {*ours} <= {"refused", False}:
            ours = "refused"  # it raises while it renames, or as soon as a layer asks
        if isinstance(answer, dict) or ours == "refused":
            # an engine that only raises when the first layer asks is refused as a whole here
            whole = isinstance(answer, dict) or not any(isinstance(each, bool) for each in answer if each is not False)
            if ours == "refused" and whole:
                agreed["refused"] += 1
            else:
                lines.append(f"{where}\n  the consumer: {answer}\n  ckptcheck: {ours}")
            continue
        for module, theirs, mine in zip(question["modules"], answer, ours, strict=True):
            same = mine == theirs if isinstance(theirs, bool) else mine == "refused"
            if same or mine == "unknown":
                agreed[f"{question['method']} {mine}"] += 1
            else:
                lines.append(f"{where}\n  {module}\n  the consumer: {theirs}\n  ckptcheck: {mine}")
    return lines, agreed


def ask(python: Path, script: str, asked: list[dict[str, Any]], folder: Path, variables: Any = None) -> list[Any]:
    """Ask the consumer's real code, in its own interpreter, all questions in one process."""
    path = folder / "questions.json"
    path.write_text(json.dumps(asked))
    command = [str(python), str(HERE / script), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert result.returncode == 0, result.stderr[-3000:]
    answers: list[Any] = json.loads(result.stdout)
    return answers
