"""Probing: answers of a model without and with each retrieved document, from which labels are derived."""
