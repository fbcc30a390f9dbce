"""Texts in, unit vectors out."""
