"""Grounding spaces: examples with their vectors and entries, built, stored and edited."""
