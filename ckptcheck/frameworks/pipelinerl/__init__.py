"""What is known of PipelineRL."""
