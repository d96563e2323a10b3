"""The miniature world: drawn entities, their encyclopedia, and questions about them."""
