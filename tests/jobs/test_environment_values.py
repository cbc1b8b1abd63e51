"""The environment of ckptcheck may hold secrets: no value of it is in a report, whatever a job asks for."""

from __future__ import annotations

import ast
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.reporters import FORMATS, render, text
from tests.paths import ROOT

CANARY = "7-canary-7"
NAMES = (
    "HF_TOKEN", "WANDB_API_KEY", "MODEL_PATH", "DATA", "ENGINE", "TEMPERATURE", "RANK", "USER", "HOSTNAME", "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES", "DUMP_ON", "VLLM_BATCH_INVARIANT", "HF_HOME", "RAY_ADDRESS",
)  # fmt: skip
VERL = """\
data: {train_files: "${oc.env:DATA}/a.parquet", tokenizer: "${oc.env:HF_TOKEN}"}
actor_rollout_ref:
  model: {path: "${oc.env:MODEL_PATH}"}
  actor: {strategy: "${oc.env:RANK}", checkpoint: {save_contents: ["${oc.env:USER}"]}}
  rollout:
    name: "${oc.env:ENGINE}"
    temperature: ${oc.decode:${oc.env:TEMPERATURE}}
    top_p: ${oc.env:TEMPERATURE,0.5}
    top_k: ${nothing.${oc.env:HF_TOKEN}}
    n: ${oc.select:${oc.env:HF_TOKEN}}
    dtype: ${mul:${oc.env:HF_TOKEN},2}
    mode: ${${oc.env:HF_TOKEN}
    engine_kwargs: {vllm: {"a": "x ${oc.env:WANDB_API_KEY}"}}
trainer: {default_local_dir: "~/${oc.env:HF_TOKEN}", project_name: "${oc.env:HOME}", nnodes: "${oc.env:RANK}"}
"""
VARIABLES = (
    "$HF_TOKEN/x ${HF_TOKEN:0:3} ${HF_TOKEN%?} ${HF_TOKEN#7} ${#HF_TOKEN} $(echo $HF_TOKEN) $HOME/data ${HOME#/}"
)
JOBS: dict[str, dict[str, str]] = {
    "hydra": {
        "job.yaml": "defaults: ['m: ${oc.env:ENGINE}', n: '${oc.env:HF_TOKEN}', _self_]\n" + VERL, "m/x.yaml": "a: 1\n",
    },
    "yaml": {"job.yaml": VERL},
    "shell": {
        "job.sh": 'source $DATA/x.sh\nsource $HOME/x.sh\nexport DUMP_ON\nexport VLLM_BATCH_INVARIANT=$VLLM_BATCH_INVARIANT\n'
        "if [ $RANK = $HF_TOKEN ]; then T=1; fi\n"
        f'A="{VARIABLES}"\n'
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$MODEL_PATH data.train_files=\"$DATA\" \\\n"
        "  actor_rollout_ref.rollout.name=${ENGINE:-vllm} actor_rollout_ref.rollout.temperature=$TEMPERATURE$T \\\n"
        "  trainer.project_name=$HOME/$USER trainer.default_local_dir=~/x trainer.n=${oc.env:HF_TOKEN} \\\n"
        "  'trainer.nnodes=${oc.env:RANK}' \"trainer.experiment_name=$A\" $HF_TOKEN --config-path=$HOME/conf\n",
    },
    "python": {
        "job.py": "import os\nfrom os import environ, getenv\nfrom pathlib import Path\nfrom trl import GRPOConfig, GRPOTrainer\n"
        "config = GRPOConfig(output_dir=os.path.expandvars('$HF_TOKEN'), use_vllm=True, run_name=f\"{os.environ['HF_TOKEN']}\",\n"
        "  temperature=float(os.getenv('TEMPERATURE')), logging_dir=str(Path.home()), hub_token=environ.get('HF_TOKEN', 'none'),\n"
        "  vllm_mode=os.environ.get('ENGINE'), top_p=dict(os.environ)['TEMPERATURE'], bf16=getenv('RANK') == getenv('USER'),\n"
        "  vllm_server_host=os.path.expanduser('~'))\n"
        "GRPOTrainer(model=os.environ['MODEL_PATH'], args=config)\n",
    },
    "toml": {
        "job.toml": 'output_dir = "${oc.env:HF_TOKEN}"\n[orchestrator]\nbatch_size = 8\n[orchestrator.sampling]\n'
        'temperature = "${oc.env:TEMPERATURE}"\n'
        '[inference.model]\nname = "$MODEL_PATH"\n[trainer.model]\nname = "${oc.env:MODEL_PATH}"\n',
    },
    "arguments": {
        "job.sh": "trl grpo --config $DATA --use_vllm\ntrl grpo --config job.yaml --use_vllm --output_dir $HF_TOKEN\n",
        "job.yaml": "model_name_or_path: ${oc.env:MODEL_PATH}\noutput_dir: $HF_TOKEN\ntemperature: ${TEMPERATURE}\n",
    },
    "ray": {
        "job.sh": "ray job submit \\\n"
        "  --runtime-env-json '{\"env_vars\": {\"DUMP_ON\": \"'$DUMP_ON'\", \"K\": \"'${HF_TOKEN}'\"}}' -- \\\n"
        "  python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm actor_rollout_ref.model.path=$HF_TOKEN\n",
    },
}  # fmt: skip


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder / next(iter(files))


@pytest.fixture
def with_canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in NAMES:
        monkeypatch.setenv(name, CANARY)
    home = tmp_path / f"home-{CANARY}"
    (home / "conf").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def shown(job: Path, **options: Any) -> str:
    """Return the report in every form."""
    try:
        report = ckptcheck.preflight(job, show_settings=True, here=True, pictures=True, **options)
    except CkptcheckError as error:
        return f"{error.message} {error.hint}"
    stream, rules = io.StringIO(), load_rules()
    text.write([report], rules, stream, verbose=True)
    return stream.getvalue() + "".join(render(form, [report], rules) for form in FORMATS if form != "text")


@pytest.mark.parametrize("kind", JOBS)
def test_no_report_of_a_job_holds_a_value_of_the_environment(kind: str, with_canaries: Path) -> None:
    assert CANARY not in shown(write(with_canaries, JOBS[kind]).relative_to(with_canaries))


def test_what_the_user_gives_and_what_the_job_writes_is_shown(with_canaries: Path) -> None:
    job = write(with_canaries, JOBS["yaml"])
    text = shown(job, env=("ENGINE=vllm", "TEMPERATURE=0.25"))
    assert "0.25" in text
    assert "$MODEL_PATH is taken from the environment of the job" in text


@pytest.mark.parametrize(("kind", "names"), [("yaml", "$TEMPERATURE"), ("shell", "$ENGINE"), ("python", "$HF_TOKEN")])
def test_defaults_that_a_variable_may_change_are_named(kind: str, names: str, with_canaries: Path) -> None:
    said = f"{names} with the default in the job; --env NAME=VALUE gives another value"
    job = write(with_canaries, JOBS[kind])
    assert said in shown(job)
    assert said not in shown(job, env=[f"{names[1:]}=0.5"])


def test_a_given_variable_chooses_a_configuration(with_canaries: Path) -> None:
    job = write(with_canaries, {"job.yaml": "defaults: [m: '${oc.env:ENGINE}', _self_]\n" + VERL, "m/x.yaml": "a: 1\n"})
    assert "x.yaml" in shown(job, env=("ENGINE=x",))


SECRETS = f"export HF_TOKEN={CANARY}\nHF_TOKEN={CANARY}\n"
LAUNCH = "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm "


@pytest.mark.parametrize(
    ("file", "text", "script"),
    [
        ("work/.env", SECRETS, f"source .env\n{LAUNCH}actor_rollout_ref.model.path=$HF_TOKEN\n"),
        ("work/.env", SECRETS, f"[ -f .env ] && . ./.env\n{LAUNCH}actor_rollout_ref.model.path=$HF_TOKEN\n"),
        ("home/.bashrc", SECRETS, f"source ~/.bashrc\n{LAUNCH}actor_rollout_ref.model.path=$HF_TOKEN\n"),
        ("home/.bashrc", SECRETS, f"source $HOME/.bashrc\n{LAUNCH}actor_rollout_ref.model.path=$HF_TOKEN\n"),
        ("home/.bashrc", SECRETS, f"source {{home}}/.bashrc\n{LAUNCH}actor_rollout_ref.model.path=$HF_TOKEN\n"),
        ("home/.bashrc", SECRETS, f"source link.sh\n{LAUNCH}actor_rollout_ref.model.path=$HF_TOKEN\n"),
        ("home/.a/k.yaml", f"model: {CANARY}\n", "vllm serve --config ~/.a/k.yaml\n"),
        ("home/.a/k.yaml", f"model_name_or_path: {CANARY}\n", "trl grpo --config $HOME/.a/k.yaml --use_vllm\n"),
        (
            "home/.a/k.yaml",
            f"actor_rollout_ref: {{{{model: {{{{path: {CANARY}}}}}}}}}\n",
            f"{LAUNCH}--config-path=$HOME/.a --config-name=k\n",
        ),
        (
            "home/.a/k.yaml",
            f"env_vars: {{{{DUMP_ON: {CANARY}}}}}\n",
            f"ray job submit --runtime-env ~/.a/k.yaml -- {LAUNCH}\n",
        ),
    ],
)
def test_hidden_files_of_the_user_are_not_read(file: str, text: str, script: str, with_canaries: Path) -> None:
    home = Path("~").expanduser()
    secret = home / file.removeprefix("home/") if file.startswith("home") else with_canaries.parent / file
    secret.parent.mkdir(exist_ok=True)
    secret.write_text(text.replace("{{", "{").replace("}}", "}"), encoding="utf-8")
    (with_canaries / "link.sh").symlink_to(home / ".bashrc")
    shell = script.replace("{home}", str(home))
    report = shown(write(with_canaries, {"run.sh": shell}).relative_to(with_canaries))
    assert CANARY not in report.replace(str(home), "").replace(f"home-{CANARY}", "")


def test_a_list_of_defaults_reads_no_hidden_file(with_canaries: Path) -> None:
    secret = Path("~/.a/k.yaml").expanduser()
    secret.parent.mkdir()
    secret.write_text(f"model: {{path: {CANARY}}}\n", encoding="utf-8")
    for name in (f"{secret.parent}/k", os.path.relpath(secret.parent / "k")):
        job = f"defaults: ['/{name}@actor_rollout_ref', '{name}@actor_rollout_ref', _self_]\n"
        job += "actor_rollout_ref: {rollout: {name: vllm}}\n"
        report = shown(write(with_canaries, {"job.yaml": job}))
        assert CANARY not in report.replace(f"home-{CANARY}", "")


def test_what_lies_beside_a_job_in_a_hidden_folder_is_read(with_canaries: Path) -> None:
    script = (
        f'source "$(dirname "${{BASH_SOURCE[0]}}")/a.sh"\nsource .venv/bin/activate\n{LAUNCH}trainer.x=$A ${{B[@]}}\n'
    )
    files = {".ws/run.sh": script, ".ws/a.sh": "A=beside\n"}
    (with_canaries / ".ws/.venv/bin").mkdir(parents=True)
    (with_canaries / ".ws/.venv/bin/activate").write_text("VIRTUAL_ENV=x\n", encoding="utf-8")
    report = ckptcheck.preflight(write(with_canaries, files))
    assert "a.sh" in str(report.read)
    assert report.verdict != "incomplete"


def test_a_gate_keeps_no_value_of_the_environment(with_canaries: Path) -> None:
    report = ckptcheck.gate(write(with_canaries, JOBS["yaml"]), stages=["preflight"], folder="kept")
    assert report.verdict == "incomplete"
    kept = [path.read_text(encoding="utf-8") for path in Path("kept").rglob("*") if path.is_file()]
    assert any("$ENGINE" in content for content in kept)
    assert not any(CANARY in content for content in kept)


def test_nothing_that_reads_or_judges_jobs_looks_at_the_environment() -> None:
    read = {"environ", "environb", "getenv", "getenvb", "expandvars", "home"}
    folders = ("ckptcheck/jobs", "ckptcheck/frameworks", "rules")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if (
            isinstance(node, ast.Attribute)
            and node.attr in read
            and ast.unparse(node.value) in ("os", "os.path", "Path")
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module in ("os", "os.path")
            and read & {each.name for each in node.names}
        )
    ]
    assert len(files) > 200
    assert found == []
