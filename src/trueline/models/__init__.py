"""Language models and embedders: a name in, weights that run out."""
