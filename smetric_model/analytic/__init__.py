"""Closed forms of one instance and of a cluster."""
