"""Runs an engine or trainer in a process of its own, with its own Python, and survives whatever happens to it.

    near (here) ── control: JSON over a socket ── far (the engine's Python, package `ckptcheck_far`)
         └───────── lifeline: a socket ────────── guardian, the parent of far: ends all that far started

Tensors do not go over the control channel: a message names the plane they travel on and where they are (exchange.py).
"""
