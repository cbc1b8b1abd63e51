"""One folder for each RL framework and engine, with all knowledge of it; ckptcheck finds every folder here by itself.

A folder may have ``preflight.py`` (`FRAMEWORK`, how its jobs are read), ``rollouts.py`` (`FORMATS`, the files in which it keeps
rollouts), ``watch.py`` (a function with the folder's name that puts a watch in) and ``defaults.toml`` (its dated defaults).
See docs/adding-a-framework.md.
"""
