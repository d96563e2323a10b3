"""The papers' ablations, run on the miniature."""
