"""Shapes and types of every jaxvec function are checked at run time in the tests."""

from jaxtyping import install_import_hook

hook = install_import_hook("jaxvec", "beartype.beartype")
