"""Where work runs: in this process, in parts on several machines, in a Ray cluster, or in another Python."""
