"""A results file -> tables, plots and pages; a pure function that runs no model."""
