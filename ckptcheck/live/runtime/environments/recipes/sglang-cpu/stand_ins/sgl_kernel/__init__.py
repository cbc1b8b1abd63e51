"""A stand-in for SGLang's compiled kernels, which have no build for CPUs: importing one works, calling it raises."""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.0.0+ckptcheck.stand.in"

ABSENT = frozenset(["sgl_kernel.scalar_type"])
"""SGLang brings its own copy of this one and takes it when the import fails."""


def _kernel(name):
    def kernel(*_, **__):
        raise NotImplementedError(f"the kernel {name} was called, and this environment has none")

    kernel.__name__ = kernel.__qualname__ = name
    return kernel


class Part(types.ModuleType):
    """A module of sgl_kernel: whatever is looked for in it is a kernel."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _kernel(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every ``sgl_kernel.…`` that somebody imports."""

    def find_spec(self, fullname, path=None, target=None):
        """Answer for sgl_kernel's own modules only."""
        if fullname.startswith("sgl_kernel.") and fullname not in ABSENT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        """Make an empty one."""
        return Part(spec.name)

    def exec_module(self, module):
        """There is nothing to run."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _kernel(f"sgl_kernel.{name}")


sys.meta_path.append(Finder())
