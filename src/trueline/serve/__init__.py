"""Models and spaces in, an OpenAI-compatible server out: `create_app` makes it."""
