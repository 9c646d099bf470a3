"""Scales of adapters on their way through a frame, which holds no NaN.

A finite scale travels as a number, any other as `nan`, `inf` or `-inf`: whether a
runtime refuses such a scale is for its own answer to show.
"""

from __future__ import annotations

import math
from typing import Any
from typing import Dict
from typing import Mapping
from typing import Union


__all__ = ["packed", "unpacked"]

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def packed(scales: Mapping[str, float]) -> Dict[str, Union[float, str]]:
    """Scales by name as a frame holds them."""
    return {
        name: float(scale) if math.isfinite(scale) else repr(float(scale))
        for name, scale in scales.items()
    }


def unpacked(value: Any) -> float:
    """One scale out of a frame.

    :raises ValueError: it is none.
    """
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError("%.40r is no scale" % (value,))
