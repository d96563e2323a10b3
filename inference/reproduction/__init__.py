"""A paper's reproduction: its steps, what each reads and writes, how far it is, and the paper's tables of it."""
