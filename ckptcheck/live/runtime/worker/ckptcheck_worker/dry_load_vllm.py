"""Has vLLM load a checkpoint without values: its own loader fills a model on the meta device.

Read against vLLM 0.32.0 (model_executor/model_loader/default_loader.py).
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from . import valueless_files  # first, because vLLM must import its safe_open
from .dry_load_answer import describe_failure, describe_load, limit_memory, stub_torchvision
from .outside_files import stay_inside
from .parameter_fills import ParameterFills, describe_fills, run_threads_inline

import torch  # isort: skip
import vllm  # isort: skip
from vllm.config import VllmConfig, set_current_vllm_config  # isort: skip
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # isort: skip
from vllm.engine.arg_utils import EngineArgs  # isort: skip
from vllm.model_executor.layers.fused_moe import config as fused_experts  # isort: skip
from vllm.model_executor.model_loader import get_model_loader  # isort: skip
from vllm.model_executor.model_loader.utils import initialize_model  # isort: skip
from vllm.model_executor.models import registry  # isort: skip
from vllm.platforms import current_platform  # isort: skip
from vllm.utils.torch_utils import set_default_torch_dtype  # isort: skip

assert valueless_files

SPARE_MEMORY = 16 << 30


def dry_load(folder: str) -> dict[str, Any]:
    """Load a folder's safetensors files as an engine's start does, without their values; see dry_load_answer.py."""
    _join_group_of_one()
    run_threads_inline()
    limit_memory(SPARE_MEMORY)
    stay_inside(folder)
    name = ""
    try:
        arguments = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            enforce_eager=True,
            load_format="safetensors",
            trust_remote_code=False,
        )
        config = arguments.create_engine_config()
        with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype):
            with torch.device("meta"):
                model = initialize_model(config)
            name = type(model).__name__
            fills = ParameterFills(model)
            with fills:
                get_model_loader(config.load_config).load_weights(model, config.model_config)
    except Exception as error:
        return describe_failure(error, name, valueless_files.describe_last_read())
    return describe_load(name, **describe_fills(fills))


_joined = False


def _join_group_of_one() -> None:
    """Make the process groups that vLLM's layers ask for, of this process alone."""
    global _joined
    if not _joined:
        with set_current_vllm_config(VllmConfig()):
            file = os.path.join(tempfile.mkdtemp(), "store")
            init_distributed_environment(1, 0, f"file://{file}", 0, backend="gloo")
            initialize_model_parallel(1)
        _joined = True


class _WithGatelessExperts:
    """The platform, as the settings of experts ask it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current_platform, name)

    def is_cuda_alike(self) -> bool:
        return True


def read_version() -> str:
    """Return the version of vLLM."""
    return str(vllm.__version__)


# on a CPU it refuses experts without a gate, as NemotronH's, before it builds them; nothing computes here
fused_experts.current_platform = _WithGatelessExperts()
registry._run_in_subprocess = lambda look: look()  # vLLM inspects classes in a new Python, which takes seconds
stub_torchvision()
RPC_METHODS = {"dry_load": dry_load, "prepare": read_version, "version": read_version}
