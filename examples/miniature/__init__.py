"""The miniature: a drawn world with an encyclopedia, small models of the real classes, and the quick start."""
