"""Models behind an OpenAI-compatible server."""
