"""Runs on the board: how long its nets take, with no probe and no SSH around them.

python3 -m benchmarks.ondevice MODEL, the prompts as JSON on stdin.
"""

from __future__ import annotations

import json
import sys
import time

import bmrt
import numpy as np

from harness.probes.program import Conversation
from harness.probes.program import Program


def main(model: str) -> None:
    """Print the seconds of each prompt's reset and scoring as one line of JSON."""
    runtime = bmrt.Runtime(0)
    runtime.load(model)
    conversation = Conversation(Program(runtime))
    seconds = []
    for tokens, continuation in json.load(sys.stdin):
        prompt, rows = np.array(tokens, np.int32), np.array(continuation, np.int32)
        start = time.perf_counter()
        conversation.reset()
        conversation.score(prompt, rows, False)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1])
