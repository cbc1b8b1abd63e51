"""A job whose configuration is written in Python."""

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

MODEL = "org/model-3b"
LENGTHS = {"prompt": 1024, "completion": 2048}


def reward(completions, **kwargs):
    return [float(len(set(completion))) for completion in completions]


def main():
    sampling = {"temperature": 0.8, "top_p": 1.0}
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="bfloat16")
    config = GRPOConfig(
        output_dir="out",
        bf16=True,
        num_generations=8,
        max_completion_length=LENGTHS["completion"],
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=sum([1024, 2048]),
        vllm_enable_sleep_mode=True,
        vllm_importance_sampling_mode="token_truncate",
        **sampling,
    )
    config.beta = 0.01
    trainer = GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=[reward],
        train_dataset=load_dataset("org/problems", split="train"),
        peft_config=LoraConfig(r=16),
    )
    trainer.train()


if __name__ == "__main__":
    main()
