"""The command: reports in every form with file and line, exit codes, one sentence for trouble, commands that can be pasted."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from ckptcheck import preflight
from ckptcheck.cli.app import build_app
from ckptcheck.jobs.live_arguments import suggest_commands
from ckptcheck.jobs.open_job import list_frameworks, open_job, split_variables
from tests.factories.checkpoint_cases import CHECKPOINTS, ROOT
from tests.factories.sample_reports import SARIF

JOB = """llm:
  parameters: {temperature: 0.7, max_tokens: 500}
finetune:
  load_as_bf16: true
  fp32_lm_head: true
  rl:
    temperature: 1.0
use_deepspeed: true
fp32_lm_head: true
model_path: org/a model's name
vllm_config:
  use_v1: true
  vllm_kwargs:
    tensor-parallel-size: 2
    logprobs-mode: processed_logprobs
    enable-prefix-caching: false
    async-scheduling: false
"""


def call(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ckptcheck", "preflight", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def hide_numbers(report: str) -> str:
    """Write N for the numbers of settings: they grow with every new field and dated default."""
    return re.sub(r"settings( +)\d+ of the job, \d+ defaults", r"settings\1N of the job, N defaults", report)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    return tmp_path


def test_a_report_that_a_person_reads(folder: Path) -> None:
    found = call("job.yaml", "--select", "JOB002,JOB017", folder=folder)
    assert (found.returncode, found.stderr) == (2, "")
    head, _, commands = hide_numbers(found.stdout).partition("\n  # org")
    assert (
        head
        == """job.yaml
PipelineRL · deepspeed → vllm TP2

  framework  PipelineRL of 2026-04-22 or earlier (job.yaml:12 has vllm_config.use_v1)
  engine     vllm (no file names its version)
  files      job.yaml
  settings   N of the job, N defaults
  keys       only compared with known keys, for typos: PipelineRL's configuration is not here

  error   JOB002 temperature-mismatch
          job.yaml:7 finetune.rl.temperature
          the trainer computes logprobs at temperature 1 (job.yaml:7), and rollouts are sampled at 0.7 (job.yaml:2)
          → let one setting refer to the other

  could not check JOB017: org/a model's name is not on this machine

  Then, on the real engine and trainer"""
    )
    name = """'org/a model'"'"'s name'"""
    switches = "logprobs=processed prefix_cache=off async_scheduling=off chunked_prefill=on head_fp32=on"
    asked = " ".join(f"--switch {switch}" for switch in switches.split())
    engine = "--engine vllm --engine-tp 2 --dtype bfloat16"
    assert commands.splitlines() == [
        "/a model's name is not on this machine",
        "  ckptcheck gate job.yaml",
        f"  ckptcheck parity probe {name} --engine vllm --dtype bfloat16 --only inflight",
        "  ckptcheck refit history train.log  # what the job prints",
        "",
        "✗ incomplete: JOB017 could not be checked, 1 error · 0 rules passed",
        "  ckptcheck rule JOB002 explains the first one",
    ]
    steps = call("job.yaml", "--select", "JOB002", "--settings", folder=folder).stdout.splitlines()
    first = next(number for number, line in enumerate(steps) if line.startswith("  ckptcheck refit"))
    assert steps[first : first + 4] == [
        f"  ckptcheck refit {name} --trainer transformers {engine} --set clear-cache=off",
        f"  ckptcheck parity record {name} {engine} --temperature 0.7 {asked} -o rollouts.safetensors",
        f"  ckptcheck parity score rollouts.safetensors {name} --trainer transformers --dtype bfloat16 --trainer-head-fp32"
        " -o scored.safetensors",
        "  ckptcheck parity judge scored.safetensors",
    ]


def test_a_megatron_critic_is_compared(tmp_path: Path) -> None:
    model, critic = "actor_rollout_ref.model.path=org/model", "critic.model.path=org/critic"
    for strategy, named, expected in (
        ("megatron", "", ["ckptcheck critic ./model"]),
        ("megatron", critic, ["hf download org/critic --local-dir ./critic", "ckptcheck critic ./critic"]),
        ("fsdp", critic, []),
    ):
        (tmp_path / "run.sh").write_text(
            f"python3 -m verl.trainer.main_ppo {model} {named} actor_rollout_ref.rollout.name=vllm critic.strategy={strategy}"
            f" actor_rollout_ref.actor.strategy={strategy} algorithm.adv_estimator=gae\n"
        )
        found = [line for line in suggest_commands(open_job([str(tmp_path / "run.sh")])) if "critic" in line]
        assert found == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", ["with --disable-cuda-graph", "on unless --disable-cuda-graph", "speculation: off"]),
        (
            "--sglang-disable-cuda-graph --sglang-speculative-algorithm EAGLE --sglang-moe-a2a-backend deepep --moe-enable-deepep",
            [
                "CUDA_LAUNCH_BLOCKING=1:",
                "off (run.sh:1)",
                "on (run.sh:1)",
                "engine: on (run.sh:1)",
                "trainer: on (run.sh:1)",
            ],
        ),
    ],
)
def test_what_to_change_where_an_engine_dies(flags: str, expected: list[str], tmp_path: Path) -> None:
    """slime's guide to illegal memory accesses, for this job; only where all settings are asked for."""
    (tmp_path / "run.sh").write_text(f"python3 train.py --hf-checkpoint /model --rollout-num-gpus 8 {flags}\n")
    title = "If the engine dies"
    report = call("run.sh", "--settings", folder=tmp_path).stdout
    lines = report[report.index(title) :].partition("\n\n")[0].splitlines()[1:]
    assert len(lines) == len(expected) + 1
    for line, part in zip(lines, [*expected, "core dump"], strict=True):
        assert part in line
    assert title not in call("run.sh", folder=tmp_path).stdout


@pytest.mark.parametrize("flag", ["--debug-train-only", "--load-debug-rollout-data /data/{rollout_id}.pt"])
def test_a_job_that_starts_no_engine_says_so(flag: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"python3 train.py --hf-checkpoint /model {flag}\n")
    assert open_job([str(tmp_path / "run.sh")]).reading["engine"] == "none: it trains on recorded rollouts"


def test_a_pipelinerl_job_is_offered_every_step(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model_path: org/model\nfinetune: {rl: {}}\nvllm_config: {use_v1: true}\n")
    verbs = [
        line.partition(" --")[0].split()[1:3] for line in suggest_commands(open_job([str(tmp_path / "job.yaml")]))[1:]
    ]
    parity = (["parity", verb] for verb in ("record", "score", "judge", "probe"))
    assert verbs == [["refit", "./model"], *parity, ["refit", "history"]]


@pytest.mark.parametrize(("rank", "merges", "offered"), [(8, "False", True), (0, "False", False), (8, "True", False)])
def test_a_job_whose_engine_loads_adapters_is_offered_their_check(
    rank: int, merges: str, offered: bool, tmp_path: Path
) -> None:
    lora = f"actor_rollout_ref.model.lora_rank={rank} +actor_rollout_ref.model.lora.merge={merges}"
    (tmp_path / "run.sh").write_text(
        f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=org/model actor_rollout_ref.rollout.name=vllm {lora}"
        " actor_rollout_ref.actor.strategy=fsdp\n"
    )
    found = suggest_commands(open_job([str(tmp_path / "run.sh")]))
    assert ("ckptcheck refit lora ./model ./adapter --engine vllm --dtype bfloat16" in found) is offered


@pytest.mark.parametrize(
    ("format", "beginning"),
    [
        ("github", "ckptcheck: job.yaml: read framework: PipelineRL"),
        ("junit", '<property name="read: framework" value="PipelineRL'),
        ("sarif", '"text": "read of job.yaml: framework: PipelineRL'),
        ("json", '"read": {\n    "framework": "PipelineRL'),
    ],
)
def test_every_format_says_first_what_was_read(format: str, beginning: str, folder: Path) -> None:
    found = call("job.yaml", "--format", format, folder=folder).stdout
    assert beginning in found
    assert found.index(beginning) < found.index("JOB002" if format != "sarif" else "JOB017")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'python run_grpo.py --config "$CONFIG" policy.generation.backend=vllm\n',
            "the configuration that run.sh:1 names: ${CONFIG} is not set in the script; give its value with --env CONFIG=…",
        ),
        (
            "python run_grpo.py --config grpo.yaml policy.generation.backend=vllm\n",
            "grpo.yaml, the configuration that run.sh:1 names: it does not exist here; name its path before the script",
        ),
        (
            "source m.sh\npython train.py --hf-checkpoint m --rollout-batch-size 8 ${MODEL_ARGS[@]} ${MORE_ARGS[@]:-}\n",
            "the arguments at run.sh:2: ${MODEL_ARGS[@]} is not set in the script, and m.sh, which run.sh:1 sources, is not"
            " in the script's folder, those above it or the working folder; give its value with --env MODEL_ARGS=…",
        ),
        (
            "python -m verl.trainer.main_ppo $OVERRIDES actor_rollout_ref.rollout.name=vllm\n",
            "the arguments at run.sh:1: ${OVERRIDES} is not set in the script; give its value with --env OVERRIDES=…",
        ),
        ("python -m verl.trainer.main_ppo\n", "any setting: run.sh has none; name the job's configuration before it"),
        (
            "python run_grpo.py policy.generation.temperature=1\n",
            "which engine the job has: policy.generation.backend: nothing sets it; give it after the file:"
            " policy.generation.backend=…",
        ),
    ],
)
def test_nothing_passes_where_the_configuration_is_not_read(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(text)
    report = preflight(tmp_path / "run.sh")
    assert (report.verdict, report.exit_code(), report.passed) == ("incomplete", 2, ())
    assert report.error == f"could not read {sentence}"


@pytest.mark.parametrize("text", ["python train.py $ARGS\n", "python train.py $1 $2\n"])
def test_the_user_gives_what_a_script_takes_from_outside(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(text.replace("$ARGS", "${ARGS} --hf-checkpoint m"))
    given = ["ARGS=--rollout-batch-size 8"] if "ARGS" in text else ["1=--hf-checkpoint=m", "2=--rollout-batch-size=8"]
    report = preflight(tmp_path / "run.sh", env=given, framework="slime")
    assert (report.verdict, report.error) == ("findings", None)
    assert (
        open_job([str(tmp_path / "run.sh")], framework="slime", environment=split_variables(given)).text(
            "checkpoint.model"
        )
        == "m"
    )


def test_a_rule_whose_setting_is_not_resolved_has_not_passed(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.temperature=$T\n"
    )
    report = preflight(tmp_path / "run.sh")
    reasons = dict(report.skipped)
    assert "JOB002" not in report.passed
    assert reasons["JOB002"] == "actor_rollout_ref.rollout.temperature is not resolved: ${T} is not set in the script"


def test_json_names_file_and_line(folder: Path) -> None:
    schema = json.loads((ROOT / "ckptcheck/reporters/report.schema.json").read_text(encoding="utf-8"))
    found = json.loads(call("job.yaml", "--format", "json", folder=folder).stdout)
    jsonschema.validate(found, schema)
    finding = next(each for each in found["findings"] if each["code"] == "JOB002")
    assert (finding["file"], finding["line"], finding["key"]) == ("job.yaml", 7, "finetune.rl.temperature")


def test_sarif_has_a_region(folder: Path) -> None:
    found = json.loads(call("job.yaml", "--format", "sarif", folder=folder).stdout)
    SARIF.validate(found)
    result = next(each for each in found["runs"][0]["results"] if each["ruleId"] == "JOB002")
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]) == ("job.yaml", {"startLine": 7})


def test_github_annotates_the_line(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "job.yaml").rename(folder / "sub/job.yaml")
    assert (
        "::error file=sub/job.yaml,line=7,title=JOB002 temperature-mismatch::"
        in call("sub/job.yaml", "--format", "github", folder=folder).stdout
    )


def test_what_was_understood_can_be_listed(folder: Path) -> None:
    found = call("job.yaml", "llm.parameters.temperature=1", "--settings", folder=folder)
    assert found.returncode == 0
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert "rollout.temperature 1 command line" in lines
    assert "engine.tp 2 job.yaml:14" in lines
    assert "engine.chunked_prefill on default of vLLM 0.32.0" in lines


@pytest.mark.parametrize(
    ("name", "text", "arguments", "sentence"),
    [
        ("job.yaml", "a: [", (), "job.yaml:1 is not YAML: expected the node content, but found '<stream end>'"),
        ("job.toml", "a = ", (), "job.toml:1 is not TOML: Invalid value"),
        ("job.sh", "run 'x", (), "job.sh:1 a ' is never closed"),
        ("job.yaml", "a: 1", (), "job.yaml does not have the keys of any framework that ckptcheck knows: a"),
        ("gate.toml", 'job = "a.yaml"', (), "gate.toml is a gate file, not a job's"),
        ("job.yaml", "a: 1", ("--framework", "x"), "--framework is one of"),
        ("job.yaml", "a: 1", ("no.yaml",), "no.yaml does not exist"),
        ("job.yaml", "a: 1", (".",), ". is a folder"),
        ("job.yaml", "a: 1", ("--select", "JOB999"), "no rule has the code 'JOB999'"),
    ],
)
def test_trouble_is_one_sentence(
    tmp_path: Path, name: str, text: str, arguments: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = call(name, *arguments, folder=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.splitlines()[0].startswith(f"ckptcheck: {sentence}")
    assert "Traceback" not in found.stderr


def test_a_value_that_is_none_is_said_once(tmp_path: Path) -> None:
    text = "policy:\n  dtensor_cfg: {enabled: true}\n  generation: {backend: vllm, temperature: hot}\n"
    (tmp_path / "nemo.yaml").write_text(text, encoding="utf-8")
    found = call("nemo.yaml", "--framework", "nemo-rl", "--select", "JOB023", folder=tmp_path)
    assert found.stdout.count("is hot, and takes a number") == 1


def test_a_path_that_begins_with_a_dot_is_not_on_the_hub(folder: Path) -> None:
    found = call("job.yaml", "model_path=./mine", "--select", "JOB017", folder=folder)
    assert "could not check JOB017: ./mine is not on this machine\n" in found.stdout
    assert found.returncode == 2
    assert "hf download" not in found.stdout


def test_nothing_to_read_is_said() -> None:
    assert "no configuration is named" in call("a.b=1", folder=ROOT).stderr


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    text = f"touch {tmp_path}/one\nA=$(touch {tmp_path}/two)\nB=`touch {tmp_path}/three`\nvllm serve org/model $A $B\n"
    (tmp_path / "serve.sh").write_text(text, encoding="utf-8")
    assert call("serve.sh", folder=tmp_path).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["serve.sh"]


def test_a_checkpoint_that_is_here_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {CHECKPOINTS}/tiny-llama\n", encoding="utf-8")
    looked, left = (open_job([str(tmp_path / "serve.sh")], scan=scan) for scan in (True, False))
    assert looked.checkpoints["checkpoint.model"].context == 64
    assert left.checkpoints == {}


def test_the_commands_are_ones_that_ckptcheck_has(folder: Path) -> None:
    top = build_app()
    seen = set()
    for line in suggest_commands(open_job([str(folder / "job.yaml")])):
        words = shlex.split(line, comments=True)
        if not words or words[1] not in top.commands:  # type: ignore[attr-defined]
            continue
        command, rest = top.commands[words[1]], words[2:]  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in rest if word.startswith("-")} <= known
        seen.add(words[1])
    assert "refit" in seen


def test_the_report_of_the_page_is_a_real_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/preflight.md").read_text(encoding="utf-8")
    text = page.split("```yaml\n")[1].split("```")[0]
    command, _, report = page.split("```console\n")[2].split("```")[0].partition("\n")
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    found = call(*shlex.split(command)[3:], folder=tmp_path).stdout
    assert hide_numbers(found) == hide_numbers(report)


@pytest.mark.parametrize("how", ["export", "--runtime-env-json", "--runtime-env", "override"])
def test_a_job_that_dumps_ends_with_the_comparison_of_its_dumps(how: str, tmp_path: Path) -> None:
    model, engine = "actor_rollout_ref.model.path=org/model", "actor_rollout_ref.rollout.name=vllm"
    command = f"python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=megatron {model} {engine}"
    (tmp_path / "env.yaml").write_text("env_vars:\n  DUMP_ON: '1'\n")
    script = {
        "export": f"export DUMP_ON=1\n{command}\n",
        "--runtime-env-json": f'ray job submit --runtime-env-json=\'{{"env_vars": {{"DUMP_ON": "1"}}}}\' -- {command}\n',
        "--runtime-env": f"ray job submit --runtime-env=env.yaml -- {command}\n",
        "override": f"{command} +ray_kwargs.ray_init.runtime_env.env_vars.DUMP_ON=1\n",
    }
    (tmp_path / "run.sh").write_text(script[how])
    job = open_job([str(tmp_path / "run.sh")])
    dumps = "--dumps 0_dump_path/update_actor 0_dump_path/generate_sequences --dtype bfloat16"
    *_, seeds, comparison = suggest_commands(job)
    assert comparison == f"ckptcheck parity localize ./model {dumps}"
    assert seeds.endswith(
        "seed_all(mode=True), as the guide does: the job sets no deterministic kernels for the trainer and the engine"
    )
    deterministic = (
        " actor_rollout_ref.actor.megatron.full_determinism=True actor_rollout_ref.rollout.full_determinism=True"
    )
    (tmp_path / "run.sh").write_text(script["export"].rstrip() + deterministic + "\n")
    assert not any("seed_all" in line for line in suggest_commands(open_job([str(tmp_path / "run.sh")])))
    (tmp_path / "run.sh").write_text(f"{command}\n")
    assert not any("localize" in line for line in suggest_commands(open_job([str(tmp_path / "run.sh")])))


def test_the_help_names_every_framework(folder: Path) -> None:
    text = "".join(call("--help", folder=folder).stdout.replace("│", "").split())
    assert [name for name in list_frameworks() if name not in text] == []


def test_a_variable_that_no_file_of_the_job_names_is_said(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 train.py --hf-checkpoint $MODEL --rollout-batch-size 8 --save $1\n", encoding="utf-8")
    given = {"MODEL": "org/model", "MODELL": "org/model", "1": "/a", "2": "/b"}
    job = open_job([str(script)], environment=given, scan=False)
    assert job.unnamed == ("2", "MODELL")
    assert "MODELL: no file of the job names it" in str(job.reading["given"])
    assert "given" not in open_job([str(script)], environment={"MODEL": "org/model"}, scan=False).reading


def test_what_follows_from_a_size_of_the_engine_is_an_info(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(CHECKPOINTS / "tiny-llama")
    (tmp_path / "run.sh").write_text(
        "python3 train.py --hf-checkpoint model --rollout-batch-size 8 --attention-dropout 0.0 --hidden-dropout 0.0 \\\n"
        "    --rollout-num-gpus 8 --rollout-num-gpus-per-engine 3\n",
        encoding="utf-8",
    )
    findings = preflight(str(tmp_path / "run.sh")).findings
    assert [(each.severity, each.code) for each in findings] == [("error", "JOB033"), ("info", "JOB060")]
    assert findings[1].hint == "mend what JOB033 names"
