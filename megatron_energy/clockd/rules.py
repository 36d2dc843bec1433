"""Who may control which GPUs, and how far: the rules file.

INI, not JSON: operators comment their rules, and Python's parser refuses a section or a key that stands twice. Sections
and keys that are not known are refused too, since a misspelt limit would otherwise be no limit. Nothing is allowed that
no rule allows; of the rules that fit a caller and a GPU the first one decides::

    [clockd]                        # all optional
    socket_group = gpu              # may connect (mode 0660); default: everybody may connect, and the rules decide
    longest_ttl_s = 600             # how long a lease may last without being renewed
    connections_per_user = 256
    lowers_per_s = 20               # lowered clocks per GPU; raised clocks and restores are never held back
    slurm_jobs = /run/megatron-energy/jobs

    [site]
    clocks_mhz = 210-1410           # what GPUs are locked to when nobody leases them; default: not locked

    [rule training]
    users = alice, 1003             # or * for everybody
    groups = ml
    gpus = slurm-job                # or all, or UUIDs
    clocks_mhz = 600-1410           # without it this rule gives no clock control
    power_w = 200-400               # without it this rule gives no control of power limits
"""

import configparser
import grp
import pwd
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from megatron_energy.clockd import paths
from megatron_energy.clockd.trust import read_trusted
from megatron_energy.errors import UserError

Gpus: TypeAlias = frozenset[str] | Literal["all", "slurm-job"]

_CLOCKD_KEYS = ("socket_group", "longest_ttl_s", "connections_per_user", "lowers_per_s", "slurm_jobs")
_SITE_KEYS = ("clocks_mhz",)
_HIGHEST_ID = 2**32 - 2  # -1 stands for "none" in the kernel
_RULE_KEYS = ("users", "groups", "gpus", "clocks_mhz", "power_w")


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from ``least`` to ``most``, both included; MHz or mW, as the name of the attribute says."""

    least: int
    most: int

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what the callers it fits may do with its GPUs. ``uids`` None: everybody."""

    name: str
    uids: frozenset[int] | None
    gids: frozenset[int]
    gpus: Gpus
    clocks_mhz: Range | None
    power_mw: Range | None

    def fits(self, uid: int, gids: Collection[int]) -> bool:
        """Whether the rule speaks of this caller."""
        return self.uids is None or uid in self.uids or not self.gids.isdisjoint(gids)


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole file. ``unusable``: why everything is denied, or None. ``site_clocks_mhz`` None: GPUs are not locked."""

    rules: tuple[Rule, ...] = ()
    site_clocks_mhz: Range | None = None
    socket_gid: int | None = None
    longest_ttl_s: int = 600
    connections_per_user: int = 256
    lowers_per_s: int = 20
    slurm_jobs: Path = paths.SLURM_JOBS
    unusable: str | None = None

    @property
    def socket_mode(self) -> int:
        """Permissions of the socket: the group's where there is one, else everybody's (the rules decide then)."""
        return 0o660 if self.socket_gid is not None else 0o666


def load_or_deny(path: Path, last_site_mhz: Range | None = None) -> Rules:
    """The rules of ``path``; where it cannot be used, rules that deny everything and say why.

    The site's range is then the last that was known, since GPUs must still be restored to something.
    """
    try:
        return load(path)
    except UserError as error:
        return Rules(site_clocks_mhz=last_site_mhz, unusable=str(error))


def load(path: Path) -> Rules:
    """Read a rules file. Raises UserError: unreadable, writable by others, or not understood; with section and key."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"), default_section="", delimiters=("=",))
    try:
        parser.read_string(read_trusted(path), source=str(path))
    except configparser.Error as error:
        raise UserError(f"{path} is malformed: {' '.join(str(error).split())}") from error
    try:
        return _rules(parser)
    except _Malformed as error:
        raise UserError(f"{path}: {error}") from error


class _Malformed(Exception):
    """A section or key that is not understood."""


def _rules(parser: configparser.ConfigParser) -> Rules:
    for name in parser.sections():
        if name not in ("clockd", "site") and not re.fullmatch(r"rule [\w.-]+", name):
            raise _Malformed(f"unknown section [{name}]: write [clockd], [site] or [rule NAME]")
    clockd, site = _section(parser, "clockd", _CLOCKD_KEYS), _section(parser, "site", _SITE_KEYS)
    defaults = Rules()
    group = clockd.get("socket_group")
    jobs = Path(clockd.get("slurm_jobs", str(defaults.slurm_jobs)))
    if not jobs.is_absolute() or "\0" in str(jobs):
        raise _Malformed(f"[clockd] slurm_jobs = {jobs}: give an absolute path")
    return Rules(
        rules=tuple(_rule(parser, name) for name in parser.sections() if name.startswith("rule ")),
        site_clocks_mhz=_range(site, "site", "clocks_mhz"),
        socket_gid=None if group is None else _identity(group, "clockd", "socket_group", _gid),
        longest_ttl_s=_number(clockd, "longest_ttl_s", defaults.longest_ttl_s, 86_400),
        connections_per_user=_number(clockd, "connections_per_user", defaults.connections_per_user, 10_000),
        lowers_per_s=_number(clockd, "lowers_per_s", defaults.lowers_per_s, 1_000),
        slurm_jobs=jobs,
    )


def _rule(parser: configparser.ConfigParser, section: str) -> Rule:
    values = _section(parser, section, _RULE_KEYS)
    if "gpus" not in values or not ("users" in values or "groups" in values):
        raise _Malformed(f"[{section}] needs gpus, and users or groups")
    for key in {"users", "groups", "gpus"} & set(values):
        if not _words(values[key]):
            raise _Malformed(f"[{section}] {key} = {values[key]}: give at least one, or leave the key out")
    users = _words(values.get("users", ""))
    power_w = _range(values, section, "power_w")
    return Rule(
        name=section.removeprefix("rule "),
        uids=None if users == ["*"] else frozenset(_identity(user, section, "users", _uid) for user in users),
        gids=frozenset(_identity(group, section, "groups", _gid) for group in _words(values.get("groups", ""))),
        gpus=_gpus(values["gpus"], section),
        clocks_mhz=_range(values, section, "clocks_mhz"),
        power_mw=None if power_w is None else Range(power_w.least * 1000, power_w.most * 1000),
    )


def _section(parser: configparser.ConfigParser, section: str, keys: tuple[str, ...]) -> dict[str, str]:
    values = dict(parser[section]) if parser.has_section(section) else {}
    for key, value in values.items():
        if key not in keys:
            raise _Malformed(f"[{section}] has an unknown key {key}: known are {', '.join(keys)}")
        if not value.strip() or "\n" in value:
            raise _Malformed(f"[{section}] {key}: give one line with a value, or leave the key out")
    return values


def _words(value: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", value) if word]


def _number(values: dict[str, str], key: str, default: int, most: int) -> int:
    text = values.get(key, str(default))
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= most:
        raise _Malformed(f"[clockd] {key} = {text}: give a whole number from 1 to {most}")
    return int(text)


def _range(values: dict[str, str], section: str, key: str) -> Range | None:
    if key not in values:
        return None
    match = re.fullmatch(r"([0-9]{1,5})\s*-\s*([0-9]{1,5})", values[key])
    if match is None or not 0 < int(match[1]) <= int(match[2]):
        raise _Malformed(f"[{section}] {key} = {values[key]}: give LEAST-MOST in whole numbers, for example 600-1410")
    return Range(int(match[1]), int(match[2]))


def _gpus(value: str, section: str) -> Gpus:
    if value == "all":
        return "all"
    if value == "slurm-job":
        return "slurm-job"
    uuids = _words(value)
    for uuid in uuids:
        if not re.fullmatch(r"GPU-[0-9a-f-]{36}", uuid):
            raise _Malformed(f"[{section}] gpus: {uuid} is no UUID: give all, slurm-job, or UUIDs as nvidia-smi -L shows them")
    return frozenset(uuids)


def _identity(word: str, section: str, key: str, lookup: Callable[[str], int]) -> int:
    if re.fullmatch(r"[0-9]+", word):
        if int(word) > _HIGHEST_ID:
            raise _Malformed(f"[{section}] {key}: {word} is no number of a user or group")
        return int(word)
    try:
        return lookup(word)
    except KeyError:
        raise _Malformed(f"[{section}] {key}: this host knows no {word}") from None


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def _gid(name: str) -> int:
    return grp.getgrnam(name).gr_gid
