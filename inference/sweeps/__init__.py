"""Many settings over one set of forward passes: the sweep, and the papers' tables in miniature."""
