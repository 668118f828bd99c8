"""Replay: the policies, corridor, metrics and gate of live runs on a model of the server."""
