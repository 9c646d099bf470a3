"""The sign-off page and its verification."""

from harness.report.signoff import show
from harness.report.signoff import write
from harness.report.verify import verify


__all__ = ["show", "verify", "write"]
