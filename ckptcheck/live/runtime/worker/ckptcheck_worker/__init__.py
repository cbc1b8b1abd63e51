"""The worker: runs in the Python of an engine or trainer, imports nothing of ckptcheck; the standard library is enough to start.

Its modules run on Python 3.10, the oldest version that supported engines still use, and import each other by relative names.
A module lists the functions that the client may call:

    RPC_METHODS = {"load": load, "score": score}

Their arguments and results are JSON. They may print; the client reads the output only when the process dies.
"""
