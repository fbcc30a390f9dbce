"""The paper's method, and what a space keeps for it: contexts with the model's predictions."""
