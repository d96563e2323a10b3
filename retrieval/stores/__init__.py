"""Where vectors lie and are searched: exactly in files, by FAISS from mapped files, or on a Milvus server."""
