"""A stand-in for triton on machines without a GPU: kernels can be defined and imported, launching one raises.

SGLang defines its kernels when it is imported. Without a GPU it never launches one: every place that would has another
path for the CPU. If that ever stops being true it is loud.
"""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "3.9.0+ckptcheck.stand.in"
"""The release it stands in for: SGLang chooses between ways to write a kernel by it."""

NO_DRIVER = "triton.runtime.driver.active"
"""Asking for it raises, as triton does without a GPU: SGLang learns from this that it is on a CPU."""


def cdiv(x, y):
    """Divide, rounded up: called on the host as well."""
    return -(-x // y)


def next_power_of_2(n):
    """Return the least power of two that is not below n: called on the host as well."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


class StandIn:
    """Any attribute of triton that is no class: a decorator, a function of the kernel language, a dtype, a constant."""

    def __init__(self, name):
        self.__name__ = self.__qualname__ = name

    def __repr__(self):
        return f"<stand-in for {self.__name__}>"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(f"{self.__name__}.{name}", name)

    def __call__(self, *arguments, **_):
        """As a decorator it makes a kernel; with options, a decorator; else one more stand-in, as tl.constexpr(3) does."""
        if len(arguments) == 1 and isinstance(arguments[0], (types.FunctionType, Kernel)):
            return Kernel(arguments[0])
        return StandIn(self.__name__)

    def __contains__(self, _):
        return False  # "cpu" in triton.backends.backends: there are none

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False


class Kernel(StandIn):
    """A kernel, or what it calls."""

    def __init__(self, function):
        super().__init__(function.__name__)
        self.fn = getattr(function, "fn", function)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __getitem__(self, _):
        return self

    def __call__(self, *_, **__):
        raise NotImplementedError(f"the triton kernel {self.__name__} was launched, and this environment has no GPU")

    def __bool__(self):
        return True


def _named(full, name):
    """Make a stand-in: a class for a capital letter (it may be inherited from or raised), else an object."""
    if full == NO_DRIVER:
        raise RuntimeError("there is no GPU, so triton has no active driver")
    if name[:1].isupper():
        base = Exception if name.endswith(("Error", "Resources")) else object
        return type(name, (base,), {"__init__": lambda self, *a, **k: None, "__module__": full.rpartition(".")[0]})
    return StandIn(full)


class Part(types.ModuleType):
    """A module of triton: whatever is looked for in it is there."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _named(f"{self.__name__}.{name}", name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every ``triton.…`` that somebody imports."""

    def find_spec(self, fullname, path=None, target=None):
        """Answer for triton's own modules only."""
        if fullname.startswith("triton."):
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
    return _named(f"triton.{name}", name)


sys.meta_path.append(Finder())
