"""What finds entries or passages for pictures and texts, in one knowledge base or several."""
