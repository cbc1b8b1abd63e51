"""Names and layouts of one model in several forms: Megatron's, and the ways in which Hugging Face checkpoints store experts."""
