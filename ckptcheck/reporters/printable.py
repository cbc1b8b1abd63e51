"""Makes text from a checkpoint safe to show: anybody may choose tensor and file names, also to deceive."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Escape characters that a reader cannot see, a terminal would obey or XML cannot hold; the result is one line.

    These are control and format characters, line ends, every space but the plain one, and lone surrogates (a file name
    that is not UTF-8, or "\ud800" in JSON).

    >>> print(printable("lm_head\n::error::\x1b[2K"))
    lm_head\n::error::\x1b[2K
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def printable_lines(text: str) -> str:
    r"""Write the lines of a text so that each is `printable`; tabs stay.

    >>> printable_lines("-\ta\n+\tb\x9b31m\n")
    '-\ta\n+\tb\\x9b31m\n'
    """
    lines = text.split("\n")
    return "\n".join("\t".join(printable(part) for part in line.split("\t")) for line in lines)
