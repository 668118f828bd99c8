"""Compose a study, run it, then judge it from its record."""
