"""``ckptcheck attach``: compares servers that run already with a checkpoint and with each other."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.observer import SILENT, Observer
from ckptcheck.verbs.options import (
    AllowRemote,
    Argument,
    CheckLogprobs,
    CheckWeights,
    DespiteErrors,
    EnginePython,
    HfConfig,
    KeepCheckpoints,
    Option,
    PhaseTimeouts,
    StrPath,
    Trainer,
    TrainerDevice,
    TrainerEp,
    TrainerGpus,
    TrainerPp,
    TrainerPython,
    TrainerTp,
)
from ckptcheck.verbs.parameter import Given, reject_checks, reject_phases, several, to_path
from ckptcheck.verbs.verb import verb

if TYPE_CHECKING:
    from ckptcheck.linter.report import Report
    from ckptcheck.live.runtime.process.exchange import TensorExchange
    from ckptcheck.live.runtime.trainers.base import Trainer as TrainerProcess

TRAINER_OPTIONS = ("trainer", "tp", "pp", "ep", "device", "trainer_gpus", "trainer_python")
NOT_MADE = "with attach: the servers run already, and no sync is made"
ALONE = "where servers are compared with each other only"


def reject_unused(given: Given) -> None:
    """Reject options about parts that do not start. Raises UsageError also if no check is left."""
    reject_checks(given)
    reject_phases(given, ["step", "sync"], NOT_MADE)
    if given["source"] is None:
        unused = (*TRAINER_OPTIONS, "engine_python", "hf_config", "despite_errors", "keep", "allow_write")
        given.reject(unused, ALONE, "name the checkpoint that they should serve with --source")
        reject_phases(given, ["start"], f"{ALONE}: nothing is started")
    if not given["check_logprobs"]:
        given.reject(TRAINER_OPTIONS, "with --no-check-logprobs: no trainer is started")
    if not given["check_weights"]:
        given.reject(["engine_python"], "with --no-check-weight-update-equal: no engine is started")


@verb(reject_unused)
def attach(
    *servers: Annotated[
        str, Argument("A running SGLang or vLLM; several: servers that should serve the same.", metavar="URL...")
    ],
    source: Annotated[
        StrPath | None,
        Option("The checkpoint that they should serve.", metavar="CHECKPOINT", shown="each other's weights"),
    ] = None,
    allow_write: Annotated[bool, Option("Overwrite the servers' weights and have them load --source.")] = False,
    allow_remote: AllowRemote = False,
    trainer: Trainer = "transformers",
    tp: TrainerTp = 1,
    pp: TrainerPp = 1,
    ep: TrainerEp = 1,
    device: TrainerDevice = "auto",
    trainer_gpus: TrainerGpus = None,
    trainer_python: TrainerPython = None,
    engine_python: EnginePython = None,
    check_weights: CheckWeights = True,
    check_logprobs: CheckLogprobs = True,
    hf_config: HfConfig = None,
    timeout: PhaseTimeouts = (),
    despite_errors: DespiteErrors = False,
    keep: KeepCheckpoints = False,
    pictures: bool = False,
    observer: Observer = SILENT,
) -> "Report":
    """Compare running SGLang or vLLM servers with a checkpoint and with each other.

    The environment variable CKPTCHECK_API_KEY has their API key. Exit codes: 0 they serve the same, 1 findings, 2 could not check.
    """
    import tempfile
    from contextlib import ExitStack

    from ckptcheck.linter.rule_loader import load_rules
    from ckptcheck.live.refit.live_trial import clean_up_folder
    from ckptcheck.live.refit.running_servers.attach import AttachOptions, attach_to_servers
    from ckptcheck.live.refit.source import add_source_errors, open_source
    from ckptcheck.live.refit.trial_state import parse_timeouts
    from ckptcheck.live.runtime.process.signal_guard import SignalGuard
    from ckptcheck.live.runtime.trainers.layout import ParallelLayout
    from ckptcheck.live.runtime.trainers.registry import start_trainer
    from ckptcheck.verbs.reports import build_report

    if not servers:
        raise CkptcheckError("there is no server to attach to", hint="name the URL of a running SGLang or vLLM")
    loaded = load_rules()
    timeouts = parse_timeouts(several(timeout))

    def start(checkpoint: Any, exchange: "TensorExchange", computed: str) -> "TrainerProcess":
        """Start the trainer that gives the logprobs."""
        return start_trainer(
            trainer, checkpoint, exchange, ParallelLayout(tp=tp, pp=pp, ep=ep), computed, device=device, gpus=trainer_gpus,
            python=to_path(trainer_python), scratch=(exchange.folder,),
        )  # fmt: skip

    options = AttachOptions(
        servers, start, timeouts, allow_write=allow_write, allow_remote=allow_remote, check_weights=check_weights,
        check_logprobs=check_logprobs, engine_python=to_path(engine_python),
    )  # fmt: skip
    errors: list[str] | None = [] if despite_errors else None
    with SignalGuard() as signal_guard, ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ckptcheck-refit-"))
        stack.callback(clean_up_folder, folder, keep, observer)
        ckpt = None
        if source is not None:
            ckpt = open_source(os.fspath(source), folder / "source", to_path(hf_config), tolerated=errors)
        report = build_report(attach_to_servers(ckpt, options, observer.log), loaded, pictures=pictures)
        signal_guard.ignore_signals()
    return add_source_errors(report, errors)
