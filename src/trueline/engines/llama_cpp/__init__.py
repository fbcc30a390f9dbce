"""llama.cpp as an engine: a GGUF file read as it is, through the C library inside a wheel."""
