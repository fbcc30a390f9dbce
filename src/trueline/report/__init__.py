"""Results in; tables, plots and the paper's own recipes out."""
