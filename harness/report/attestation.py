"""The verdict as an in-toto statement, for release tooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


__all__ = ["statement"]


def statement(doc: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto Statement v1 with a test-result v0.1 predicate.

    Everything but GO is FAILED: neither an inconclusive nor an invalid run shows
    that the subjects may be released.

    :param doc: `signoff.json` of the run.
    """
    boards = doc["environment"]
    models = {name: (board.get("model") or {}) for name, board in boards.items()}
    subjects = [(a["name"], a["digest"]) for a in doc["adapters"]]
    subjects += [(f"model on {name}", m.get("digest")) for name, m in models.items()]
    probes = [(f"probe on {name}", b.get("probe")) for name, b in boards.items()]
    failed = {row["nodeid"] for row in doc["failures"]}
    names = [check["nodeid"] for check in doc["checks"] if check["status"] == "PASS"]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": _named(subjects),
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": "PASSED" if doc["verdict"] == "GO" else "FAILED",
            "configuration": _named(probes),
            "passedTests": sorted(names),
            "failedTests": sorted(failed),
        },
    }


def _named(digests: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": n, "digest": {"sha256": d}} for n, d in digests if d]
