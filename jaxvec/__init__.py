"""Sentence vectors whose cosine means something, in JAX."""
