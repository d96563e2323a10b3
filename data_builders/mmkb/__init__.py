"""MMKB-RAG's RET, SRT and MCT labels, derived from probes (arXiv 2504.10074, section 3)."""
