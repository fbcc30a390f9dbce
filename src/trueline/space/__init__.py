"""Examples become a grounding space, which is kept in a folder and looked into."""
