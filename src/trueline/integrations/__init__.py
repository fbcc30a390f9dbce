"""trueline inside other people's programs."""
