"""Where passes over a checkpoint's bytes run: in this process, in parts on several machines, or in a Ray cluster."""
