"""Corrections fitted on pooled vectors."""
