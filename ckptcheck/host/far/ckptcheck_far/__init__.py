"""The far side of a host: runs in the Python of an engine, knows nothing of ckptcheck, needs the standard library only.

Whatever lies here has to run on Python 3.10, the oldest that an engine in use still comes with, and imports its own
package by relative names. A module whose functions the near side may call lists them:

    VERBS = {"load": load, "score": score}

A verb takes and returns what JSON can say. It may print; the near side reads that only when the process dies.
"""
