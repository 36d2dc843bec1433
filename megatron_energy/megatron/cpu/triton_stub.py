"""A stand-in for triton, which megatron-core >= 0.18 imports at module scope. No kernel is ever launched on a CPU."""

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

_MODULES = ("triton", "triton.language", "triton.runtime", "triton.language.extra", "triton.tools")


class _Anything:
    """Decorator, attribute, subscript: whatever module-level code does with a name of triton."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __getitem__(self, _item: Any) -> "_Anything":
        return self


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 (a package needs it, import machinery reads it)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


def install() -> None:
    """Register the stand-in unless triton is there; torch is told that there is none."""
    if "triton" in sys.modules or importlib.util.find_spec("triton") is not None:
        return
    import torch.utils._triton as torch_triton

    for name in ("has_triton", "has_triton_package"):
        setattr(torch_triton, name, lambda *_args, **_kwargs: False)
    for name in _MODULES:
        module = _Module(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    root: Any = sys.modules["triton"]
    root.__version__ = "3.6.0"
    root.language = sys.modules["triton.language"]
    root.jit = root.heuristics = root.autotune = _Anything()
    root.cdiv = lambda a, b: -(-a // b)
