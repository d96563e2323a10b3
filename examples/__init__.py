"""Runnable examples. The library never imports them; models reach it by the entry-point group `reflectune.models`."""
