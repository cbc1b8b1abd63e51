"""A live weight sync from a trainer into an inference engine, watched from both ends."""
