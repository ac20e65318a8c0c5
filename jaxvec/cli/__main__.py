"""`python -m jaxvec.cli`, the same as `jaxvec`."""

from jaxvec.cli import main

main()
