"""What was seen, kept."""

from harness.evidence.recheck import rederive
from harness.evidence.records import AdapterFacts
from harness.evidence.records import Check
from harness.evidence.records import Deselected
from harness.evidence.records import Environment
from harness.evidence.records import Judged
from harness.evidence.records import Planned
from harness.evidence.records import Record
from harness.evidence.records import Run
from harness.evidence.records import Status
from harness.evidence.release import Release
from harness.evidence.release import derive
from harness.evidence.release import last_attempts
from harness.evidence.store import RECORDS
from harness.evidence.store import RunFolder


__all__ = [
    "RECORDS",
    "AdapterFacts",
    "Check",
    "Deselected",
    "Environment",
    "Judged",
    "Planned",
    "Record",
    "Release",
    "Run",
    "RunFolder",
    "Status",
    "derive",
    "last_attempts",
    "rederive",
]
