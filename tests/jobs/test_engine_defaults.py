"""The defaults that are taken where no version is told, and the arguments that are known, are the installed engines' own."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from ckptcheck.jobs.engine_flags import DEFAULTS, DEPRECATED_ARGUMENTS, NEWEST, known_arguments
from tests.conftest import needs_engine

pytestmark = pytest.mark.engine

VLLM = """
import json
from vllm import __version__
from vllm.config.cache import CacheConfig
from vllm.config.model import ModelConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
actions = make_arg_parser(FlexibleArgumentParser())._actions
print(json.dumps({
    "version": __version__,
    "logprobs": ModelConfig.logprobs_mode,
    "prefix_caching": CacheConfig.enable_prefix_caching,
    "chunked_prefill": SchedulerConfig.enable_chunked_prefill,
    "cascade_attention": not ModelConfig.disable_cascade_attn,
    "async_scheduling": SchedulerConfig.async_scheduling,
    "generation_config": ModelConfig.generation_config,
    "arguments": [[option, action.nargs == 0] for action in actions for option in action.option_strings],
}))
"""
SGLANG = """
import argparse, json
from sglang.srt.server_args import ServerArgs
from sglang.version import __version__
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
given = vars(parser.parse_args(["--model-path", "x"]))
print(json.dumps({
    "version": __version__,
    "prefix_caching": not given["disable_radix_cache"],
    "async_scheduling": not given["disable_overlap_schedule"],
    "fp32_head": bool(given["enable_fp32_lm_head"]),
    "dtype": given["dtype"],
    "kv_cache_dtype": given["kv_cache_dtype"],
    "arguments": [[option, action.nargs == 0] for action in parser._actions for option in action.option_strings],
}))
"""


def told(engine: str, program: str) -> dict[str, Any]:
    python = needs_engine(engine)
    command = [str(python.python), "-c", program]
    environment = os.environ | dict(python.variables)
    environment.pop("PYTHONPATH", None)
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    return dict(json.loads(result.stdout.splitlines()[-1]))


def ours(engine: str, name: str) -> object:
    version = tuple(int(part) for part in NEWEST[engine].split("."))
    return DEFAULTS[engine][f"engine.{name}"](version)


@pytest.mark.xdist_group("defaults")
@pytest.mark.parametrize(("engine", "program"), [("vllm", VLLM), ("sglang", SGLANG)])
def test_defaults_and_arguments(engine: str, program: str) -> None:
    found = told(engine, program)
    assert found.pop("version") == NEWEST[engine]
    switches, valued = known_arguments(engine)
    options = {
        option[2:].replace("-", "_"): switch for option, switch in found.pop("arguments") if option.startswith("--")
    }
    plain = {
        name: switch
        for name, switch in options.items()
        if "." not in name and name != "help" and not (name.startswith("no_") and name[3:] in options)
    }
    assert not plain.keys() - switches - valued
    assert {name for name, switch in plain.items() if switch} == switches & plain.keys()
    assert not DEPRECATED_ARGUMENTS[engine] & plain.keys()
    if engine == "vllm":
        assert (found.pop("logprobs"), found.pop("async_scheduling")) == (
            "raw_logprobs",
            None,
        )  # None: on where it can be
        assert (ours("vllm", "logprobs"), ours("vllm", "async_scheduling")) == ("raw", True)
    assert found == {name: ours(engine, name) for name in found}
