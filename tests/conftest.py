"""What all tests share: pytest's own fixtures for tests of plugins."""

import signal


pytest_plugins = ["pytester"]

# What a shell starts in the background ignores SIGINT, and so would the runs that
# tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
