"""lmms-eval's benchmarks through our pipelines: an adapter to its runner, and a table of what its runner wrote."""
