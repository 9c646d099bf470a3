"""What a board must show before a LoRA release is signed off, in titles."""

from __future__ import annotations


__all__ = ["TITLES", "title"]

TITLES = {
    "R01": "Compiled model reserves A and B slots for every target module",
    "R02": "Adapter fits the reserved slots, nothing missing, nothing left over",
    "R03": "Effective scale of each module computed and recorded",
    "R04": "Deployed base is the one the adapter was made for",
    "R10": "Base answers as the reference does",
    "R11": "Loaded adapter changes the answer as the reference says",
    "R12": "Cleared equals the first base",
    "R13": "Reloaded equals the first loaded state",
    "R14": "Repeatability measured before anything is judged",
    "R15": "Reported adapter is the one the logits show",
    "R16": "Gain on the adapter's own task equals the reference's",
    "R17": "Merged build equals dynamic branch and reference",
    "R20": "Scale uses the adapter's own rank, not the reserved one",
    "R21": "Run-time scale does what alpha times scale does",
    "R22": "Every layer, module and factor takes part",
    "R30": "No residue of an earlier adapter",
    "R40": "Damaged or unfit adapter refused, previous state intact",
    "R41": "Adapter for another base refused or detected",
    "R42": "Non-finite adapter refused or gone after clear",
    "R50": "Fresh prompt after a switch sees nothing of the old cache",
    "R51": "Switch inside a conversation follows the platform's rule",
    "R52": "Saved cache not taken as valid under another adapter",
    "R53": "Prefill and decode apply the same adapter",
    "R54": "Prompts of every length behave the same (image prompts are not tested)",
    "R60": "Base session untouched by another session's adapter",
    "R61": "Sessions with different adapters stay independent",
    "R62": "Capacity reached, the next request refused cleanly",
    "R63": "Context and session switches follow the documented precedence",
    "R64": "Parallel requests refused, queued or right, never mixed",
    "R65": "Several adapters in one session add up as stated",
    "R66": "Restart leaves the base and nothing else",
    "R70": "Cost of load, clear and switch; memory; throughput",
    "R71": "Dynamic branch against merged model: break-even",
    "R72": "Soak: no drift over repeated load, use, clear",
    "R90": "Report names and hashes everything tested, verifiable later",
    "R91": "Adapters wrong on purpose are found wrong",
    "R92": "Planned equals executed plus named misses",
    "R93": "Each pass states the smallest fault it could have seen",
    "R94": "Changes since the last release run are shown",
}


def title(requirement: str) -> str:
    """Short title of a requirement; the id itself for one not in the table."""
    return TITLES.get(requirement, requirement)
