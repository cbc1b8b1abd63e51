"""The draft's session on SGLang's own classes: its draft models need a GPU, and what an update does to them does not."""

from __future__ import annotations

import pytest

from tests.conftest import needs_engine
from tests.live.runtime.engines.sglang_scripts import run_in_sglang

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
SCRIPT = """
import asyncio, inspect, os, tempfile
from types import SimpleNamespace as Some
import torch
from ckptcheck_worker import sglang_options, sglang_update, tensor_files
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils import MultiprocessingSerializer

calls = []
class Updater:
    def __init__(self, role):
        self.role = role
    def begin_weight_update(self):
        calls.append([self.role, "begin"])
    def update_weights_from_tensor(self, named_tensors, load_format):
        calls.append([self.role, *[name for name, _ in named_tensors]])
        return True, "Success"
    def end_weight_update(self, run_post_load):
        calls.append([self.role, "end"])
def worker(role):
    runner = (role, Some(weight_updater=Updater(role)))
    return Some(weight_update_runners=lambda: [runner],
                deserialize_own_rank=lambda data: MultiprocessingSerializer.deserialize(data[0]))
torch.distributed.barrier = lambda group=None: None
manager = SchedulerWeightUpdaterManager.__new__(SchedulerWeightUpdaterManager)
for name, value in dict(tp_worker=worker("target"), draft_worker=worker("draft"), flush_cache=lambda **_: True, scheduler=Some(
        record_weight_version_change=lambda new_version: None), metrics_collector=None, _session=None, tp_cpu_group=None).items():
    setattr(manager, name, value)
class Tokenizer:
    def config_value(self, name):
        return "7"
    def __getattr__(self, name):
        async def call(request, _):
            answer = getattr(manager, name)(request)
            return answer.success, answer.message
        return call
engine = Some(tokenizer_manager=Tokenizer(), server_args=Some(tp_size=1))
def send(name, selector):
    path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    address = tensor_files.write_tensors({name: torch.ones(4)}, {"kind": "file", "path": path})
    update = sglang_update.Update([{"address": address, "names": [name]}], True, "7", "", lambda: None, selector)
    calls.clear()
    result = asyncio.run(sglang_update.run_update(engine, "tensor", update))
    return [result["ok"], result["message"], list(calls)]
drafts = {**sglang_options._draft_arguments("/draft", 3), **sglang_options._draft_arguments("mtp", 3)}
fields = inspect.signature(ServerArgs).parameters
answer({
    "target": send("policy", "target"), "draft": send("own", "draft"), "all": send("both", "all"),
    "unknown": sorted(set(drafts) - set(fields)),
})
"""


def test_the_policy_and_its_draft_have_sessions_of_their_own() -> None:
    needs_engine("sglang")
    answer = run_in_sglang(SCRIPT)
    assert answer["target"] == [True, "", [["target", "begin"], ["target", "policy"], ["target", "end"]]]
    assert answer["draft"] == [True, "", [["draft", "begin"], ["draft", "own"], ["draft", "end"]]]
    # what SGLang does by default: a frozen draft is restored, written and packed again with the policy's weights
    assert answer["all"][2] == [[role, what] for what in ("begin", "both", "end") for role in ("target", "draft")]
    assert not answer["unknown"]
