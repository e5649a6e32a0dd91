"""Writes the page of complete tables."""
