"""ckptcheck: checks model checkpoints and weight syncs.

A rule needs two names, and they are what this package exports::

    from ckptcheck import Problem, rule
"""

from ckptcheck.rule import Problem, Skip, rule

__version__ = "0.1.0"
__all__ = ["Problem", "Skip", "__version__", "rule"]
