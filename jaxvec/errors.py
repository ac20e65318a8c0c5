"""The one exception for input that jaxvec cannot use, and the commonest question about an argument."""

from numbers import Integral
from typing import Any


class InputError(ValueError):
    """Bad input: the message names the file, row or argument, what was expected and what to do.

    It is a `ValueError`, so `except ValueError` catches it; the command line turns it into one line on
    stderr and exit code 2.
    """


def is_whole(value: Any, least: int | None = None) -> bool:
    """Whether an argument is a whole number of Python's or NumPy's, not a bool, and at least so large.

    >>> is_whole(3, 1), is_whole(0, 1), is_whole(True), is_whole(3.0)
    (True, False, False, False)
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and (least is None or bool(value >= least))
