"""A product's own loader, imported from its file or as a module of the board."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

from .server import Refused
from .server import Unready
from .server import one_line


__all__ = ["Product", "product_class"]

MODULE = "product_loader"


def product_class(spec: str) -> Any:
    """The class named by `FILE:Class` or `module:Class`.

    A file may have any name (uploads are named by their digest); modules beside it
    can be imported.

    :raises Unready: no such file, module or class, or it cannot be imported.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise Unready("loader", "%r is neither FILE:Class nor module:Class" % spec)
    try:
        module = _file(place) if "/" in place else importlib.import_module(place)
    except Exception as error:
        raise Unready("loader", "%s: %s" % (spec, _told(error)[1])) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise Unready("loader", "%s: no class %r" % (place, name))
    return found


def _file(path: str) -> Any:
    sys.path.insert(1, os.path.dirname(os.path.abspath(path)))
    source = importlib.machinery.SourceFileLoader(MODULE, path)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(MODULE, source)  # type: ignore[arg-type]
    )
    sys.modules[MODULE] = module
    source.exec_module(module)
    return module


class Product:
    """A loader under test: whatever it raises is its refusal.

    Only what ends the process (`SystemExit`, a signal) goes through, as it would
    in the product.
    """

    def __init__(self, make: Any, runtime: Any) -> None:
        try:
            self._loader = make(runtime)
        except Exception as error:
            raise Refused(*_told(error)) from error

    def load(self, folder: str) -> None:
        """Load an adapter folder."""
        try:
            self._loader.load(folder)
        except Exception as error:
            raise Refused(*_told(error)) from error

    def clear(self) -> None:
        """Go back to base."""
        try:
            self._loader.clear()
        except Exception as error:
            raise Refused(*_told(error)) from error

    @property
    def loaded(self) -> str:
        """The name it reports, empty for base."""
        try:
            name = self._loader.loaded
        except Exception as error:
            raise Refused(*_told(error)) from error
        return "" if name is None else one_line(name)


def _told(error: Exception) -> Any:
    """Code and text of an exception; the class name is the code of a foreign one."""
    code = getattr(error, "code", None) or type(error).__name__
    text = getattr(error, "text", None) or str(error) or type(error).__name__
    return one_line(code), one_line(text)
