"""Pipelines, one a file, and two stages that measure their parts."""
