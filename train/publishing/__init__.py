"""A finished checkpoint's card, and its way to the Hub."""
