"""Readers of public trace formats."""
