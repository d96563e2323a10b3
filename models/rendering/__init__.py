"""Conversations as token ids: turns, and the renderer that writes them in a family's chat template."""
