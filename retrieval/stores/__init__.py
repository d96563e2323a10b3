"""Vector stores: exact files, FAISS over mapped files, or a Milvus server."""
