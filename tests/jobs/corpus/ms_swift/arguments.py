"""A job of ms-swift in Python."""

from swift import RLHFArguments, rlhf_main

LENGTH = 1024 * 4

rlhf_main(
    RLHFArguments(
        rlhf_type="grpo",
        model="org/model-1b",
        tuner_type="full",
        dataset=["org/problems"],
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.5,
        vllm_max_model_len=2 * LENGTH,
        max_completion_length=LENGTH,
        torch_dtype="bfloat16",
        temperature=0.7,
    )
)
