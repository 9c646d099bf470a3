"""What the vendor's `rknn3lite.api.rknn3_types` exports, as far as it is used."""

from __future__ import annotations

from . import constants
from . import records
from .constants import *  # noqa: F403
from .records import *  # noqa: F403


__all__: list[str] = []
__all__ += constants.__all__
__all__ += records.__all__
