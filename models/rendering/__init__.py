"""Conversations as token ids and pixels: turns, a renderer for a family's chat template, and image fitting."""
