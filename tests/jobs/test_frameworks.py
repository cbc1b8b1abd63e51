"""Every framework's own spelling becomes the same fields, each with the place where it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.fields import FIELDS
from ckptcheck.jobs.job import Job
from ckptcheck.jobs.open_job import list_frameworks, open_job


def opened(folder: Path, files: dict[str, str], *more: str, **told: Any) -> Job:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return open_job([str(folder / next(iter(files))), *more], **told)


def said(job: Job, *names: str) -> list[str]:
    return [f"{name} {job.describe(name)}" for name in names]


def test_verl_on_the_command_line(tmp_path: Path) -> None:
    text = """set -x
T=0.7
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.temperature=$T \\
    data.max_prompt_length=$((1024 * 2)) \\
    +actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8 \\
    ++actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \\
    trainer.nnodes=2 $@
"""
    job = opened(tmp_path, {"run.sh": text})
    assert job.framework == "verl"
    assert job.text("trainer.backend") == "megatron"
    assert said(job, "trainer.tp", "rollout.temperature", "rollout.prompt_length", "engine.kv_cache_dtype") == [
        "trainer.tp 4 (run.sh:8)",
        "rollout.temperature 0.7 (run.sh:5)",
        "rollout.prompt_length 2048 (run.sh:6)",
        "engine.kv_cache_dtype fp8 (run.sh:7)",
    ]  # fmt: skip
    assert said(job, "trainer.world", "engine.dtype", "rollout.response_length") == [
        "trainer.world 16 (run.sh:9)",
        "engine.dtype bfloat16 (default of verl)",
        "rollout.response_length 512 (default of verl)",
    ]
    assert not job.notes


def test_verl_with_a_configuration_that_is_not_here_has_no_defaults(tmp_path: Path) -> None:
    job = opened(
        tmp_path, {"run.sh": "python -m verl.trainer.main_ppo --config-name=ours actor_rollout_ref.rollout.name=vllm\n"}
    )
    assert job.notes == ["ours, the configuration that run.sh:1 names, does not exist"]
    assert job["rollout.temperature"].status == "unresolved"


def test_slime_with_its_model_script(tmp_path: Path) -> None:
    files = {
        "scripts/run.sh": """SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/moe.sh"
CKPT_ARGS=(
   --hf-checkpoint /models/actor
   # --load /models/other
)
ROLLOUT_ARGS=( --rollout-batch-size 8 --rollout-temperature 0.8
   --sglang-context-length 8k )
ray job submit --address="http://127.0.0.1:8265" -- python3 train_async.py \\
   --actor-num-nodes 4 --actor-num-gpus-per-node 8 \\
   ${MODEL_ARGS[@]} ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]} --use-tis
""",
        "scripts/models/moe.sh": "MODEL_ARGS=(\n   --num-experts 128\n   --moe-permute-fusion\n)\n",
    }
    job = opened(tmp_path, files)
    assert job.files == ("run.sh", "models/moe.sh")
    assert said(job, "trainer.moe", "trainer.moe_permute_fusion", "engine.max_model_len", "trainer.world") == [
        "trainer.moe on (models/moe.sh:2)",
        "trainer.moe_permute_fusion on (models/moe.sh:3)",
        "engine.max_model_len 8000 (run.sh:8)",
        "trainer.world 32 (run.sh:10)",
    ]
    assert said(job, "algorithm.correction", "algorithm.lag", "rollout.temperature", "trainer.temperature") == [
        "algorithm.correction tis (run.sh:11)",
        "algorithm.lag 1 (default of train_async.py)",
        "rollout.temperature 0.8 (run.sh:7)",
        "trainer.temperature 0.8 (run.sh:7)",
    ]


def test_slime_without_rollouts_has_no_engine(tmp_path: Path) -> None:
    text = "python3 train_async.py --hf-checkpoint /m --rollout-batch-size 8 --loss-type sft_loss --debug-train-only\n"
    job = opened(tmp_path, {"run.sh": text})
    assert job.engine == ""
    assert job["algorithm.lag"].status == "unknown"


def test_nemo_rl_builds_on_other_files(tmp_path: Path) -> None:
    files = {
        "recipes/job.yaml": """defaults: ../base.yaml
policy:
  megatron_cfg:
    enabled: true
    context_parallel_size: 2
  generation:
    vllm_cfg:
      tensor_parallel_size: 4
""",
        "base.yaml": """policy:
  model_name: org/model
  precision: bfloat16
  max_total_sequence_length: 4096
  generation:
    backend: vllm
    temperature: 0.9
    vllm_cfg:
      precision: ${policy.precision}
      max_model_len: ${...max_total_sequence_length}
      tensor_parallel_size: 1
grpo:
  async_grpo:
    enabled: true
""",
    }
    job = opened(tmp_path, files)
    assert job.framework == "NeMo-RL"
    assert job.subject == "NeMo-RL · megatron CP2 → vllm TP4"
    assert said(
        job, "rollout.temperature", "engine.max_model_len", "engine.tp", "update.clears_cache", "algorithm.lag"
    ) == [
        "rollout.temperature 0.9 (../base.yaml:7)",
        "engine.max_model_len 4096 (../base.yaml:10)",
        "engine.tp 4 (job.yaml:8)",
        "update.clears_cache off (default of NeMo-RL)",
        "algorithm.lag 1 (default of NeMo-RL)",
    ]


def test_nemo_rl_from_its_launch_line(tmp_path: Path) -> None:
    files = {
        "run.sh": "uv run examples/run_grpo_math.py --config job.yaml policy.generation.top_p=0.9\n",
        "job.yaml": "policy:\n  generation: {backend: vllm, temperature: 1.0}\n",
    }
    assert said(opened(tmp_path, files), "rollout.top_p", "rollout.temperature") == [
        "rollout.top_p 0.9 (run.sh:1)",
        "rollout.temperature 1 (job.yaml:2)",
    ]


def test_pipelinerl_composes_groups(tmp_path: Path) -> None:
    files = {
        "math.yaml": """defaults:
  - base
  - override finetune: gspo
  - _self_
llm:
  parameters: {temperature: 0.7}
fp32_lm_head: true
""",
        "base.yaml": """defaults:
  - finetune: base
  - _self_
fp32_lm_head: false
max_lag: null
llm:
  parameters: {temperature: 1.0, max_tokens: 100}
vllm_config:
  use_v1: true
  vllm_kwargs:
    enable-chunked-prefill: ""
    max_model_len: 200
""",
        "finetune/base.yaml": """seq_length: 300
fp32_lm_head: ${..fp32_lm_head}
rl:
  temperature: ${...llm.parameters.temperature}
""",
        "finetune/gspo.yaml": "defaults:\n  - base\n  - _self_\nseq_length: 400\n",
    }
    job = opened(tmp_path, files)
    assert said(
        job,
        "trainer.temperature",
        "trainer.fp32_head",
        "engine.fp32_head",
        "trainer.max_length",
        "engine.chunked_prefill",
    ) == [
        "trainer.temperature 0.7 (finetune/base.yaml:4)",
        "trainer.fp32_head on (finetune/base.yaml:2)",
        "engine.fp32_head on (math.yaml:7)",
        "trainer.max_length 400 (finetune/gspo.yaml:4)",
        "engine.chunked_prefill on (base.yaml:11)",
    ]
    assert job.flag("algorithm.unbounded_lag") is True


def test_roll(tmp_path: Path) -> None:
    text = """pretrain: org/model
prompt_length: 512
response_length: 1024
train_infer_correction:
  is_weight:
    enabled: true
actor_train:
  model_args: {dtype: bf16}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 2, expert_model_parallel_size: 4}
  device_mapping: list(range(0,16))
actor_infer:
  model_args: {dtype: bf16}
  strategy_args:
    strategy_name: sglang
    strategy_config: {tp_size: 4, sleep_level: 2, disable_radix_cache: true}
"""
    job = opened(tmp_path, {"job.yaml": text})
    assert job.subject == "ROLL · megatron TP2 EP4 → sglang TP4"
    assert said(
        job, "trainer.world", "trainer.moe", "engine.prefix_caching", "algorithm.correction", "rollout.temperature"
    ) == [
        "trainer.world 16 (job.yaml:12)",
        "trainer.moe on (job.yaml:11)",
        "engine.prefix_caching off (job.yaml:17)",
        "algorithm.correction is_weight (job.yaml:6)",
        "rollout.temperature 0.95 (default of ROLL)",
    ]


@pytest.mark.parametrize("how", ["one file", "three files", "a launch line"])
def test_prime_rl(tmp_path: Path, how: str) -> None:
    train, orch, infer = "seq_len = 4096\ncp = 2\n", "temperature = 0.6\n", "max_model_len = 4096\n"
    one = f"[trainer.model]\n{train}[orchestrator.sampling]\n{orch}[inference.model]\n{infer}"
    parts = {"train.toml": f"[model]\n{train}", "orch.toml": f"[sampling]\n{orch}", "infer.toml": f"[model]\n{infer}"}
    line = "uv run rl --trainer @ train.toml --orchestrator @ orch.toml --inference @ infer.toml --max-async-level 3\n"
    if how == "one file":
        job = opened(tmp_path, {"rl.toml": one}, "max_async_level=3")
    elif how == "three files":
        job = opened(tmp_path, parts, str(tmp_path / "orch.toml"), str(tmp_path / "infer.toml"), "max_async_level=3")
    else:
        job = opened(tmp_path, {"run.sh": line, **parts})
    numbers = ("trainer.cp", "trainer.max_length", "rollout.temperature", "engine.max_model_len", "algorithm.lag")
    assert [job.number(name) for name in numbers] == [2, 4096, 0.6, 4096, 3]
    assert job.framework == "prime-rl"


SERVED = ["vllm", 4, 4000, False, "org/model"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve org/model -tp 4 --max-model-len 4k --no-enable-prefix-caching", SERVED),
        (
            "python -m vllm.entrypoints.openai.api_server --model=org/model --tensor_parallel_size 4"
            " --max-model-len=4000 --no-enable-prefix-caching",
            SERVED,
        ),
        (
            "python3 -m sglang.launch_server --model-path org/model --tp-size 4 --context-length 4000 --disable-radix-cache",
            ["sglang", 4, 4000, False, "org/model"],
        ),
        ('bash -c "cd /x && vllm serve org/model -tp 4 --max-model-len 4000 --no-enable-prefix-caching"', SERVED),
    ],
)  # fmt: skip
def test_plain_launch_lines(tmp_path: Path, line: str, expected: list[object]) -> None:
    job = opened(tmp_path, {"serve.sh": f"export X=1\n{line} &\n"})
    assert [
        job.engine, job.number("engine.tp"), job.number("engine.max_model_len"), job.flag("engine.prefix_caching"),
        job.text("checkpoint.model"),
    ] == expected  # fmt: skip


def test_versions_are_those_that_files_pin_or_the_user_tells(tmp_path: Path) -> None:
    text = "docker run vllm/vllm-openai:v0.17.1\npip install transformer_engine==2.4\nvllm serve m\n"
    job = opened(tmp_path, {"serve.sh": text})
    assert (job.engine_version, job.te_version) == ("0.17.1", "2.4")
    assert job.describe("engine.cascade_attention") == "on (default of vLLM 0.17.1)"
    told = opened(tmp_path, {"serve.sh": text}, engine_version="v0.18.0")
    assert told.describe("engine.cascade_attention") == "off (default of vLLM 0.18.0)"


def test_environment_of_yaml(tmp_path: Path) -> None:
    text = "policy:\n  megatron_cfg: {enabled: true, env_vars: {NRL_VLLM_FP32_LM_HEAD: '1'}}\n  generation: {backend: vllm}\n"
    assert opened(tmp_path, {"job.yaml": text}).flag("engine.fp32_head") is True


@pytest.mark.parametrize(
    ("files", "more", "sentence"),
    [
        (
            {"job.yaml": "a: 1\nb: {c: 2}\n"},
            (),
            "job.yaml does not have the keys of any framework that ckptcheck knows: a, b",
        ),
        ({"job.yaml": "{}\n"}, (), "job.yaml does not have the keys of any framework that ckptcheck knows: none"),
        (
            {"job.yaml": "actor_rollout_ref: {}\nactor_train: {}\nactor_infer: {}\n"},
            (),
            "job.yaml could be of ROLL or verl",
        ),
        ({"run.sh": "echo 1\n"}, (), "run.sh starts no training job and no engine that ckptcheck knows"),
        ({"job.json": "{}"}, (), "job.json is neither YAML, TOML, a shell script nor Python"),
        ({"job.yaml": "defaults: job.yaml\npolicy: {generation: {}}\n"}, (), "job.yaml:1 defaults include each other"),
    ],
)
def test_what_is_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], more: tuple[str, ...], sentence: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CkptcheckError) as trouble:
        open_job([next(iter(files)), *more])
    assert trouble.value.message == sentence


def test_the_framework_can_be_told(tmp_path: Path) -> None:
    assert (
        opened(
            tmp_path, {"job.yaml": "actor_rollout_ref: {}\nactor_train: {}\nactor_infer: {}\n"}, framework="roll"
        ).framework
        == "ROLL"
    )
    with pytest.raises(CkptcheckError, match="there is no framework x"):
        open_job(["a.yaml"], framework="x")
    with pytest.raises(CkptcheckError, match="latest is no version"):
        opened(tmp_path, {"job.yaml": "actor_rollout_ref: {}\n"}, engine_version="latest")


def test_every_reader_fills_known_fields_only() -> None:
    for framework in list_frameworks().values():
        assert framework.sources.keys() <= FIELDS.keys(), framework.name


def test_nemo_rl_reads_the_configuration_that_its_program_names(tmp_path: Path) -> None:
    program = """
def main():
    if not args.config:
        args.config = os.path.join(os.path.dirname(__file__), "configs", "grpo.yaml")
"""
    config = "policy:\n  generation: {backend: vllm, temperature: 0.7}\ngrpo: {num_prompts_per_step: 8}\n"
    job = opened(
        tmp_path,
        {
            "run.sh": "uv run examples/run_grpo.py grpo.num_prompts_per_step=4\n",
            "examples/run_grpo.py": program,
            "examples/configs/grpo.yaml": config,
        },
    )
    assert (job.engine, job.number("batch.train"), job.describe("rollout.temperature")) == (
        "vllm", 4, "0.7 (examples/configs/grpo.yaml:2)",
    )  # fmt: skip
    assert job.gaps == {}


PARSED = """from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser, get_peft_config

if __name__ == "__main__":
    parser = TrlParser((GRPOConfig, ModelConfig))
    training_args, model_args = parser.parse_args_and_config()
    training_args.temperature = 0.7
    if model_args.use_peft:
        training_args.beta = 0.0
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path, args=training_args, peft_config=get_peft_config(model_args)
    )
"""


@pytest.mark.parametrize(
    "line", ["--config job.yaml --num_generations 4", "--model_name_or_path org/model --num_generations 4"]
)
def test_a_script_that_parses_its_command_line_is_read_with_it(line: str, tmp_path: Path) -> None:
    files = {"run.sh": f"accelerate launch train.py {line}\n", "train.py": PARSED}
    files["job.yaml"] = "model_name_or_path: org/model\nuse_vllm: true\n"
    job = opened(tmp_path, files)
    assert (job.number("rollout.n"), job.text("checkpoint.model")) == (4, "org/model")
    assert (job.engine, job.flag("trainer.lora")) == ("vllm" if "job.yaml" in line else "transformers", False)
    assert job.number("rollout.temperature") == 0.7
    assert (job.gaps, job.takes_flags) == ({}, "")


def test_a_script_that_parses_its_command_line_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PARSED)
    alone, given = (
        open_job([str(tmp_path / "train.py"), *more]) for more in ((), ("model_name_or_path=org/model", "top_p=0.9"))
    )
    assert list(alone.gaps) == ["the arguments of train.py"]
    assert (given.gaps, given.number("rollout.top_p"), given.number("rollout.temperature")) == ({}, 0.9, 0.7)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        (
            "from trl.experimental.async_grpo import AsyncGRPOConfig\nAsyncGRPOConfig(max_staleness=2, num_generations=4)\n",
            4,
        ),
        (
            "from trl import GRPOConfig\nclass Mine(GRPOConfig):\n    num_generations: int = 16\nMine(temperature=0.7)\n",
            16,
        ),
    ],
)
def test_a_configuration_is_read_beside_the_source_of_its_class(text: str, n: int, tmp_path: Path) -> None:
    package = tmp_path / "trl/experimental/async_grpo"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class AsyncGRPOConfig:\n    max_staleness: int = 4\n")
    job = opened(tmp_path, {"train.py": text})
    assert (job.framework, job.number("rollout.n")) == ("TRL", n)
    assert job.files == ("train.py",)


BASE = """N=${N:-4}
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=${MODEL:-org/model} actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=$N "$@"
"""


@pytest.mark.parametrize(
    "line",
    [
        'bash sub/base.sh actor_rollout_ref.rollout.top_p=0.9 "$@"',
        'exec "$(dirname "$0")/sub/base.sh" actor_rollout_ref.rollout.top_p=0.9',
        'ARGS=(actor_rollout_ref.rollout.top_p=0.9)\nsrun -N 1 bash sub/base.sh "${ARGS[@]}"',
    ],
)
def test_a_script_that_runs_another_is_read_with_what_it_gives_it(line: str, tmp_path: Path) -> None:
    text = f"export MODEL=org/other\n{line.replace('bash', 'N=16 bash') if line.startswith('bash') else line}\n"
    job = opened(tmp_path, {"run.sh": text, "sub/base.sh": BASE})
    n = 16 if line.startswith("bash") else 4
    assert (job.number("rollout.top_p"), job.number("rollout.n"), job.engine) == (0.9, n, "vllm")
    assert (job.text("checkpoint.model"), job.files) == ("org/other", ("run.sh", "sub/base.sh"))


def test_a_script_beside_a_launch_is_not_taken_for_it(tmp_path: Path) -> None:
    text = "bash prepare.sh data.x=1\npython3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8\n"
    job = opened(
        tmp_path, {"run.sh": text, "prepare.sh": "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=2\n"}
    )
    assert job.number("rollout.n") == 8
