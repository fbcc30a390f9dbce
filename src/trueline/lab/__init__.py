"""Benchmarks, judges, metrics and runs: how far a decoding method can be trusted, measured."""
