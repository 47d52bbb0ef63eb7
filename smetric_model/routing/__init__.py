"""Routing policies: pure functions shared by simulator and live router."""
