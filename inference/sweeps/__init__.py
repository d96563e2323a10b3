"""Sweeps: many settings over one set of forward passes."""
