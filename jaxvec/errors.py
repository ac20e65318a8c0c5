"""The one exception for input that jaxvec cannot use."""


class InputError(ValueError):
    """Bad input: the message names the file, row or argument, what was expected and what to do.

    It is a `ValueError`, so `except ValueError` catches it; the command line turns it into one line on
    stderr and exit code 2.
    """
