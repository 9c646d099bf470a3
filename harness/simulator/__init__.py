"""Boards on a CPU, reached over SSH like real ones."""
