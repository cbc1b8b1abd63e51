"""What `parity why`, `probe`, `matrix` and `calibrate` have in common: sides score again with one thing changed.

A `Side` starts a trainer or an engine when it is first needed. A new experiment is

- a probe, where an engine should compute the same in another set-up: a generator in ``probes/`` that yields set-ups and returns a
  result with a `section`, a line in ``probes/registry.py``, a rule in ``rules/probes/`` that reads the result (for two set-ups of
  one engine that is PRB010: a line in its `HINTS`), and a row in docs/kl-grows.md;
- a cause of a gap, where one change would close it: a function that yields trials in ``attribution/experiments.py`` (a new engine
  setting is a field of `EngineChange`), a line in `EXPERIMENTS` there, and a row in docs/kl-grows.md. Set
  `Trial.only_drops_tokens` where it leaves tokens out: such a trial counts only if what remains is at the floor;
- a comparison for the floor, where both ways are right: a way of `Calibration` and a line in `calibrate.COMPARISONS`.
"""
