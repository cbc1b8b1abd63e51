"""Maps the tensors of one model between its stored forms: Megatron's, and the forms of Hugging Face checkpoints."""
