"""Puts a watch into slime, verl, NeMo-RL, TRL, checkpoint-engine, prime-rl, SkyRL, AReaL, OpenRLHF and PipelineRL.

Each adapter wraps one method of the framework, and imports nothing of it. They are written against slime 04b6c8d
(UpdateWeightFromTensor, UpdateWeightFromDistributed), verl 11eb3d0 (BaseRollout.update_weights, CheckpointEngine.send_weights),
NeMo-RL 00ab4ef (stream_weights_via_ipc_zmq_impl, packed_broadcast_producer) and TRL 0.28 to 1.16. For the others, `INTERFACE` in
their files says the date, the commit, and the methods with their arguments. Where a version has others, the watch says so in one
sentence when it is put in, and still sees the engine's side.
"""

from ckptcheck.watch.adapters.areal_engine import areal
from ckptcheck.watch.adapters.checkpoint_engine_server import checkpoint_engine
from ckptcheck.watch.adapters.nemo_rl_sender import nemo_rl
from ckptcheck.watch.adapters.openrlhf_trainer import openrlhf
from ckptcheck.watch.adapters.pipelinerl_manager import pipelinerl
from ckptcheck.watch.adapters.prime_rl_broadcast import prime_rl
from ckptcheck.watch.adapters.skyrl_sender import skyrl
from ckptcheck.watch.adapters.slime_updater import slime
from ckptcheck.watch.adapters.trl_generation import trl
from ckptcheck.watch.adapters.verl_rollout import verl

__all__ = [
    "areal", "checkpoint_engine", "nemo_rl", "openrlhf", "pipelinerl", "prime_rl", "skyrl", "slime", "trl", "verl",
]  # fmt: skip
