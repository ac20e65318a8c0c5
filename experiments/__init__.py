"""One file for each published table or figure; `python -m experiments` lists those that are tables."""
