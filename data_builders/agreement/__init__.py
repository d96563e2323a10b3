"""How far annotators agree, and how right they are."""
