"""corrective."""
