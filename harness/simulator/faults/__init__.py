"""Faults put into simulated boards on purpose."""
