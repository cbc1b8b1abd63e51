"""Whatever starts or touches an inference engine or a trainer."""
