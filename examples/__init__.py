"""Runnable examples. The library never imports them; model names reach it by the entry-point group `reflectune.models`."""
