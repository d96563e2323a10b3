"""Adapter of our pipelines to lmms-eval's benchmarks."""
