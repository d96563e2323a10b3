"""Search tools that find whole pages: over a local knowledge base, or behind a search server."""
