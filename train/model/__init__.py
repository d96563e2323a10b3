"""The model that is trained: loading it, and choosing the weights that train."""
