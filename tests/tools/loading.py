"""Importing a tool, which is a script and belongs to no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).parents[2] / "tools"


def load_tool(name: str) -> ModuleType:
    """Module ``tools/<name>.py``; the same each time."""
    if name in sys.modules:
        return sys.modules[name]
    if str(TOOLS) not in sys.path:  # a script finds its neighbours
        sys.path.append(str(TOOLS))
    found = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert found is not None and found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)  # dataclasses look their module up there
    found.loader.exec_module(module)
    return module
