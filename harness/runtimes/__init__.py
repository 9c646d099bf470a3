"""The software under test behind one interface."""
