"""Decide from what was seen: the standard library, numpy and pydantic only."""
