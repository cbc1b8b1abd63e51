"""Runs an engine or trainer in a worker process with its own Python, and survives its failures.

    client (here) ── control: JSON over a socket ── worker (the engine's Python, package `ckptcheck_worker`)
         └─────────── lifeline: a socket ────────── supervisor, the worker's parent: ends every process that the worker started

Tensors never travel over the control socket: a message says in which file or process group they are (exchange.py).
"""
