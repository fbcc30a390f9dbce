"""The paper's numbers (arXiv 2508.02184), the recipes that run them again, and comparisons."""
