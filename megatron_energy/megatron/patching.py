"""Patching a megatron-core: which patch fits the files of a folder, putting it in, and taking it out.

Here and not in the command line, because it is knowledge about Megatron's files; it imports neither torch nor Megatron.
A file is written as a whole or not at all, in place of the old one, so that a hard link to a package cache leaves the cache alone.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import re
import stat
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import megatron_energy
from megatron_energy.errors import UserError
from megatron_energy.megatron.patch_file import Patch, PatchFileError, digest, parse

PACKAGE_INFO = "megatron/core/package_info.py"
UNNEEDED = "training needs no patch"
ABANDONED_S = 60.0
"""A new file that is not in place after so long, where writing takes milliseconds, belongs to a process that was killed."""


@dataclass(frozen=True)
class Target:
    """A file that a patch fits.

    Attributes:
        path: of the file itself: links are followed.
        patch: the one that fits.
        patched: whether it is in.
        content: what the file holds.
    """

    path: Path
    patch: Patch
    patched: bool
    content: bytes


def all_patches() -> list[Patch]:
    """Every patch there is, by version. Raises UserError where a file of ours is damaged or missing."""
    package = Path(megatron_energy.__file__).parent
    folders = [folder for folder in (package / "patches", package.parent / "patches") if folder.is_dir()]  # installed; a checkout
    files = sorted(folders[0].glob("*.patch")) if folders else []
    if not files:
        raise UserError("this installation of megatron-energy holds no patches: install it again")
    return sorted(map(_load, files), key=lambda patch: [int(number) for number in patch.version.split(".")])


def _load(file: Path) -> Patch:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (PatchFileError, OSError) as error:
        raise UserError(f"{file}: damaged ({error}): install megatron-energy again") from error


def installed_site() -> Path:
    """The folder from which this Python would import megatron.core, without importing anything. Raises UserError if there is none."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find_spec("megatron", None) if find_spec is not None else None
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (Path(folder) / "core" / "__init__.py").is_file():
                return Path(folder).parent
    raise UserError("this Python finds no megatron-core: give --site the folder that holds megatron/, such as a clone of Megatron-LM")


def find(site: Path) -> Target:
    """The file below ``site`` that a patch fits. Raises UserError: there is none, or it is neither as released nor as patched."""
    patches = all_patches()
    for target in dict.fromkeys(patch.target for patch in patches):
        try:
            path = (site / target).resolve(strict=True)
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"{site / target} cannot be read: {error.strerror}") from error
        return _fitting(site, path, content, [patch for patch in patches if patch.target == target])
    raise UserError(f"no {patches[0].target} in {site}: give --site the folder that holds megatron/, such as a clone of Megatron-LM")


def _fitting(site: Path, path: Path, content: bytes, patches: list[Patch]) -> Target:
    found = digest(content)
    for patch in patches:
        if found in (patch.sha256, patch.patched_sha256):
            return Target(path, patch, found == patch.patched_sha256, content)
    version = core_version(site)
    for patch in patches:
        if patch.version == version:
            raise UserError(
                f"{path} is neither as megatron-core {version} was released nor as the patch makes it (SHA-256 {found[:12]}..., "
                f"not {patch.sha256[:12]}... or {patch.patched_sha256[:12]}...): put the released file back; {UNNEEDED}"
            )
    known = ", ".join(patch.version for patch in patches)
    raise UserError(
        f"{path} is not as any megatron-core with a patch ({known}) was released, nor as the patch makes it: it was changed, or "
        f"megatron-core {version or 'of this unknown version'} has none; {UNNEEDED}"
    )


def core_version(site: Path) -> str | None:
    """megatron-core's release as its package_info.py says it; None if it does not."""
    try:
        text = (site / PACKAGE_INFO).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    numbers = [re.search(rf"^{name} *= *(\d+)", text, re.MULTILINE) for name in ("MAJOR", "MINOR", "PATCH")]
    candidate = re.search(r"^PRE_RELEASE *= *['\"](\w*)['\"]", text, re.MULTILINE)
    found = [number[1] for number in numbers if number is not None]
    return ".".join(found) + (candidate[1] if candidate else "") if len(found) == len(numbers) else None


def verify(target: Target) -> None:
    """Put the patch in, or take it out, and back again, in memory. Raises UserError unless every byte comes back."""
    there = _other_content(target)
    if _other_content(replace(target, patched=not target.patched, content=there)) != target.content:
        raise AssertionError("two files with the same SHA-256")


def apply(target: Target) -> bool:
    """Put the patch in; False: it is in already. Raises UserError if the file cannot be written, which is unchanged then."""
    if not target.patched:
        _write(target.path, _other_content(target))
    return not target.patched


def revert(target: Target) -> bool:
    """Take the patch out; False: it is not in. Raises UserError if the file cannot be written, which is unchanged then."""
    if target.patched:
        _write(target.path, _other_content(target))
    return target.patched


def _other_content(target: Target) -> bytes:
    """The file as released where it is patched, and the other way round."""
    try:
        return (target.patch.taken_out_of if target.patched else target.patch.applied_to)(target.content)
    except PatchFileError as error:
        raise UserError(
            f"the patch for megatron-core {target.patch.version} is damaged ({error}): install megatron-energy again"
        ) from error


def _write(path: Path, content: bytes) -> None:
    try:
        _forget_bytecode(path)
        _replace(path, content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}) and is unchanged: run this as its owner, or with --site on a copy of "
            "megatron/ that stands first on PYTHONPATH"
        ) from error


def _forget_bytecode(path: Path) -> None:
    """Remove compiled files: Python would notice most that are stale, but not those that were compiled to be taken unchecked."""
    for compiled in Path(importlib.util.cache_from_source(str(path))).parent.glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    """The new file takes the place of the old one when it is complete, with its mode and owner."""
    before, prefix = path.stat(), f".{path.name}.energy-"
    for abandoned in path.parent.glob(f"{prefix}*"):
        with contextlib.suppress(FileNotFoundError):  # it is in place by now
            if time.time() - abandoned.stat().st_mtime > ABANDONED_S:
                abandoned.unlink()
    handle, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(PermissionError):  # who may write here may not be able to give files away
            os.chown(name, before.st_uid, before.st_gid)
        os.chmod(name, stat.S_IMODE(before.st_mode))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
