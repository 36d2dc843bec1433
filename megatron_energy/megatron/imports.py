"""Changing a module of Megatron when it is imported, now if it already was."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

Change = Callable[[Any], None]


def when_imported(name: str) -> Callable[[Change], Change]:
    """Register the decorated function to be called with module ``name`` once that has been imported."""

    def register(change: Change) -> Change:
        apply_when_imported(name, change)
        return change

    return register


def apply_when_imported(name: str, change: Change) -> None:
    """Call ``change(module)`` after module ``name`` is imported; at once if it already is.

    Hooks of one module run in the order of their registration.
    """
    wrapt.register_post_import_hook(change, name)


def loaded(name: str) -> ModuleType | None:
    """Module ``name`` if the program has imported it, else None. Imports nothing."""
    return sys.modules.get(name)


def replace(owner: Any, **attributes: Any) -> None:
    """Set attributes of a module or class: the one place where foreign names are rebound."""
    for name, value in attributes.items():
        setattr(owner, name, value)
