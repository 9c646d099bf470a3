"""What all tests share: pytest's own fixtures for tests of plugins."""

pytest_plugins = ["pytester"]
