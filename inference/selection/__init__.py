"""Which answer a product ranks first, and which documents a threshold keeps."""
