"""Models of transformers behind the engine protocol."""
