"""Faults in real engines and a real trainer, and what trials say of them: ``make matrix``.

    python -m tests.fault_matrix [--engine NAME] [--only WORD ...] [--part N/M] [--list] [--keep] [--merge FILE ...] [--verbose]

Faults of one engine and model share processes (session.py). Prints one line a fault; with --keep, the results replace those of
before in tests/data/fault_matrix.json, and build/fault-matrix.md is written from them. Exits 1 where a sound trial is not quiet,
and where a fault that was detected before no longer is.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.paths import ROOT

sys.path.insert(0, str(ROOT / "fixtures"))

from tests.fault_matrix.fault import ENGINES, Fault, load_faults
from tests.fault_matrix.grading import Grade, grade, regrade
from tests.fault_matrix.session import FaultSession, describe
from tests.fault_matrix.table import PAGE, RESULTS, format_page, merge_results, read_results

USUAL = {"vllm": {"REF011"}, "sglang": set()}
"""What a sound trial finds too: vLLM keeps its prefix cache over an update unless it is told not to."""
SEEN = ("yes", "warning")


def choose(faults: Sequence[Fault], engine: str, only: Sequence[str], part: str) -> list[Fault]:
    """Return the faults of an engine whose names contain one of these words. part: N/M, every M-th from the N-th."""
    found = [fault for fault in faults if engine in fault.engines]
    found = [fault for fault in found if not only or any(word in str(fault) for word in only)]
    number, _, parts = part.partition("/")
    return found[int(number) - 1 :: int(parts)] if parts else found


def run_engine(engine: str, faults: Sequence[Fault], verbose: bool) -> Iterator[Grade | dict[str, Any]]:
    """Run faults on one engine; yield their grades, and what a sound trial of each session said."""
    for model, ranks in dict.fromkeys((fault.model, fault.ranks) for fault in faults):
        chosen = [fault for fault in faults if (fault.model, fault.ranks) == (model, ranks)]
        began = time.monotonic()
        with FaultSession(engine, model, ranks, say=print if verbose else lambda _: None) as session:
            sound = session.run(None)
            codes = sorted({finding.code for finding in sound.report.findings if finding.severity != "info"})
            print(f"{engine} ×{ranks} {model}: sound {codes}, after {time.monotonic() - began:.0f} s", flush=True)
            assert sound.trace.engine is not None
            said = {"engine": engine, "model": model, "ranks": ranks, "trials": 1, "codes": codes}
            yield {**said, "version": sound.trace.engine.version, "failed": dict(sound.trace.failed_phases)}
            for fault in chosen:
                outcome = session.run(fault)
                if verbose:
                    print(describe(outcome))
                yield grade(fault, engine, outcome, USUAL[engine])
            print(f"{engine} ×{ranks} {model}: {session.restarts} engines started anew", flush=True)


def main() -> None:
    """Run the faults that were asked for."""
    parser = argparse.ArgumentParser(description="Faults in live engines, and what trials say of them.")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--only", nargs="*", default=[], help="faults whose name has one of these words")
    parser.add_argument("--part", default="", metavar="N/M", help="every M-th fault from the N-th")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write the results and the page")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the results of before, and run nothing"
    )
    parser.add_argument("--merge", nargs="*", help="add the results of these files, write the page, and run nothing")
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    faults = load_faults()
    before = read_results() if RESULTS.is_file() else {}
    if asked.page:
        _write_page(before, faults)
        return
    if asked.merge is not None:
        for results in [read_results(Path(path)) for path in asked.merge] or [before]:
            _merge(before, results["sound"], results["grades"], faults, results["versions"], results.get("dates", {}))
            before = read_results()
        return
    known = {(each["fault"], each["engine"]): each["detected"] for each in before.get("grades", ())}
    grades: list[Grade] = []
    sound: list[dict[str, Any]] = []
    failed = 0
    for engine in asked.engine or ENGINES:
        chosen = choose(faults, engine, asked.only, asked.part)
        if asked.list:
            print(*(f"{engine} {fault}" for fault in chosen), sep="\n")
            continue
        for each in run_engine(engine, chosen, asked.verbose):
            if isinstance(each, dict):
                sound.append(each)
                failed += bool(set(each["codes"]) - USUAL[engine]) or bool(each["failed"])
                continue
            grades.append(each)
            print(
                f"{each.engine} {each.fault}: detected {each.detected}, cause {each.cause}, tensor {each.tensor}, part {each.part},"
                f" rank {each.rank}, party {each.party} [{', '.join(each.codes)}] {each.seconds:.0f} s",
                flush=True,
            )
            lost = known.get((each.fault, each.engine)) in SEEN and each.detected not in SEEN
            failed += lost
            if lost or asked.verbose or each.detected not in SEEN or each.cause != "right":
                print(*(f"    {message[:400]}" for message in each.messages), sep="\n", flush=True)
            if asked.keep:  # after every fault: a run of hours may be ended
                _write(sound, grades[-1:], faults)
    sys.exit(bool(failed))


def _write(sound: Sequence[dict[str, Any]], grades: Sequence[Grade], faults: Sequence[Fault]) -> None:
    """Add to the results, which a run of the other engine may write too, and write the page."""
    with Path(tempfile.gettempdir(), "ckptcheck-fault-matrix.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_results() if RESULTS.is_file() else {}
        versions = {each["engine"]: each["version"] for each in sound}
        dates = dict.fromkeys(versions, time.strftime("%Y-%m-%d", time.gmtime()))
        _merge(before, sound, [each.as_json() for each in grades], faults, versions, dates)


def _merge(
    before: Mapping[str, Any],
    sound: Sequence[Mapping[str, Any]],
    grades: Sequence[Mapping[str, Any]],
    faults: Sequence[Fault],
    versions: Mapping[str, str],
    dates: Mapping[str, str],
) -> None:
    kept = [{key: each[key] for key in ("engine", "model", "ranks", "trials", "codes")} for each in sound]
    new = {"versions": dict(versions), "dates": dict(dates), "sound": kept, "grades": list(grades)}
    by_name = {(str(fault), engine): fault for fault in faults for engine in fault.engines}
    merged = merge_results(before, new)
    known = [(each, by_name.get((each["fault"], each["engine"]))) for each in merged["grades"]]
    merged["grades"] = [regrade(each, fault) for each, fault in known if fault is not None]
    RESULTS.write_text(json.dumps(merged, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _write_page(merged, faults)


def _write_page(results: Mapping[str, Any], faults: Sequence[Fault]) -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(format_page(results, faults), encoding="utf-8")


if __name__ == "__main__":
    main()
