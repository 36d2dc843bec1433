"""JSON files with a schema and a version."""

import json
import os
from pathlib import Path
from typing import Any

from megatron_energy.errors import UserError


def read_document(path: str | os.PathLike[str], what: str, schema: str, version: int, *, otherwise: str, again: str) -> dict[str, Any]:
    """The content of a file without its schema and version.

    Args:
        path: the file.
        what: it should be: ``plan``.
        schema: that it must have.
        version: of the schema that this release reads.
        otherwise: what to tell of a file of another kind.
        again: what to do about one of another version.

    Raises:
        UserError: no such file, not JSON, another kind of file, or another version.
    """
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no {what}: not JSON ({error})") from error
    except RecursionError as error:
        raise UserError(f"{path} is no {what}: its brackets are nested too deeply") from error
    if not isinstance(body, dict) or body.get("schema") != schema:
        raise UserError(f"{path} is no {what}: {otherwise}")
    if body.get("version") != version:
        raise UserError(f"{path} has {what} version {body.get('version')}, this release reads {version}: {again}")
    return {key: value for key, value in body.items() if key not in ("schema", "version")}
