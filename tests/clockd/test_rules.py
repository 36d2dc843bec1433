import grp
import os
import pwd
from pathlib import Path

import pytest

from megatron_energy.clockd.rules import Range, Rules, load, load_or_deny
from megatron_energy.clockd.trust import read_trusted
from megatron_energy.errors import UserError

UUID = "GPU-5d3c8e02-2d4a-4c57-9be0-5f1f2c8f7a11"
ROOT_NAME, ROOT_GROUP = pwd.getpwuid(0).pw_name, grp.getgrgid(0).gr_name


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "clockd.ini"
    path.write_text(text)
    path.chmod(0o644)
    return path


def rules(tmp_path: Path, text: str) -> Rules:
    return load(file(tmp_path, text))


def test_a_full_file(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        f"""
        [clockd]
        socket_group = {ROOT_GROUP}    # who may connect
        longest_ttl_s = 120
        lowers_per_s = 10
        slurm_jobs = /run/jobs
        [site]
        clocks_mhz = 210-1410
        [rule training]
        users = {ROOT_NAME}, 1003
        groups = {ROOT_GROUP} 77
        gpus = slurm-job
        clocks_mhz = 600 - 1410
        power_w = 200-400
        [rule guests]
        users = *
        gpus = {UUID}
        """.replace("        ", ""),
    )
    training, guests = found.rules
    assert (found.socket_gid, found.socket_mode, found.longest_ttl_s, found.lowers_per_s, found.slurm_jobs) == (
        0,
        0o660,
        120,
        10,
        Path("/run/jobs"),
    )
    assert found.site_clocks_mhz == Range(210, 1410)
    assert (training.name, training.uids, training.gids, training.gpus) == ("training", {0, 1003}, {0, 77}, "slurm-job")
    assert (training.clocks_mhz, training.power_mw) == (Range(600, 1410), Range(200_000, 400_000))
    assert (guests.uids, guests.gpus, guests.clocks_mhz, guests.power_mw) == (None, {UUID}, None, None)


def test_whom_a_rule_fits(tmp_path: Path) -> None:
    named, everybody, group = rules(
        tmp_path, "[rule a]\nusers=1003\ngpus=all\n[rule b]\nusers=*\ngpus=all\n[rule c]\ngroups=77\ngpus=all\n"
    ).rules
    assert (named.fits(1003, {5}), named.fits(1004, {5})) == (True, False)
    assert everybody.fits(1004, set())
    assert (group.fits(1003, {5, 77}), group.fits(77, {5})) == (True, False)


def test_an_empty_file_allows_nothing(tmp_path: Path) -> None:
    found = rules(tmp_path, "")
    assert (found.rules, found.unusable, found.socket_mode) == ((), None, 0o666)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("users = 3", "malformed: File contains no section headers"),
        ("[rule a\n", "malformed"),
        ("[rule a]\nusers=3\ngpus=all\n[rule a]\nusers=3\ngpus=all", "malformed: .*section 'rule a' already exists"),
        ("[rule a]\nusers=3\nusers=4\ngpus=all", "malformed: .*option 'users' in section 'rule a' already exists"),
        ("[role a]\nusers=3\ngpus=all", r"unknown section \[role a\]"),
        ("[rule]\nusers=3\ngpus=all", r"unknown section \[rule\]"),
        ("[DEFAULT]\nusers=*\n[rule a]\ngpus=all", r"unknown section \[DEFAULT\]"),
        ("[rule a]\nusers=3\ngpus=all\nclock_mhz=1-2", r"\[rule a\] has an unknown key clock_mhz"),
        ("[site]\npower_w=1-2", r"\[site\] has an unknown key power_w"),
        ("[rule a]\nusers=3", r"\[rule a\] needs gpus, and users or groups"),
        ("[rule a]\ngpus=all", r"\[rule a\] needs gpus, and users or groups"),
        ("[rule a]\nusers=\ngpus=all", r"\[rule a\] users: give one line with a value"),
        ("[rule a]\nusers=3\n  4\ngpus=all", r"\[rule a\] users: give one line with a value"),
        ("[rule a]\nusers=no-such-user-here\ngpus=all", r"\[rule a\] users: this host knows no no-such-user-here"),
        ("[rule a]\nusers=*, 3\ngpus=all", r"\[rule a\] users: this host knows no \*"),
        ("[rule a]\ngroups=no-such-group\ngpus=all", r"\[rule a\] groups: this host knows no no-such-group"),
        ("[rule a]\nusers=3\ngpus=0", r"\[rule a\] gpus: 0 is no UUID"),
        ("[rule a]\nusers=3\ngpus=all, " + UUID, r"\[rule a\] gpus: all is no UUID"),
        ("[rule a]\nusers=3\ngpus=all\nclocks_mhz=1410", r"\[rule a\] clocks_mhz = 1410: give LEAST-MOST"),
        ("[rule a]\nusers=3\ngpus=all\nclocks_mhz=1410-210", r"clocks_mhz = 1410-210: give LEAST-MOST"),
        ("[rule a]\nusers=3\ngpus=all\nclocks_mhz=0-210", r"clocks_mhz = 0-210: give LEAST-MOST"),
        ("[rule a]\nusers=3\ngpus=all\npower_w=200.5-300", r"power_w = 200.5-300: give LEAST-MOST"),
        ("[rule a]\nusers=,\ngpus=all", r"\[rule a\] users = ,: give at least one"),
        ("[rule a]\nusers=3\ngpus=,", r"\[rule a\] gpus = ,: give at least one"),
        ("[rule a]\nusers=4294967295\ngpus=all", r"\[rule a\] users: 4294967295 is no number of a user"),
        ("[rule a]\nusers=\u0663\ngpus=all", r"\[rule a\] users: this host knows no \u0663"),
        ("[clockd]\nsocket_group=" + 20 * "9", r"\[clockd\] socket_group: 9+ is no number of a user or group"),
        ("[clockd]\nslurm_jobs=/jo\0bs", "slurm_jobs = .*: give an absolute path"),
        ("[clockd]\nlongest_ttl_s=0", "longest_ttl_s = 0: give a whole number from 1 to 86400"),
        ("[clockd]\nlowers_per_s=many", "lowers_per_s = many: give a whole number"),
        ("[clockd]\nslurm_jobs=jobs", "slurm_jobs = jobs: give an absolute path"),
    ],
)
def test_what_is_not_understood_denies_everything_and_says_where(tmp_path: Path, text: str, complaint: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(UserError, match=complaint) as refused:
        load(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)
    denying = load_or_deny(path, Range(300, 1200))
    assert (denying.rules, denying.site_clocks_mhz) == ((), Range(300, 1200))
    assert denying.unusable == str(refused.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"clockd\.ini cannot be read: No such file"):
        load(tmp_path / "clockd.ini")


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    path = file(tmp_path, "")
    path.chmod(mode)
    with pytest.raises(UserError, match="can be written by others than its owner"):
        load(path)


def test_nor_is_one_in_a_folder_that_others_can_write(tmp_path: Path) -> None:
    path = file(tmp_path, "text")
    tmp_path.chmod(0o777)
    with pytest.raises(UserError, match=r"the folder .* of .*clockd\.ini can be written by others"):
        read_trusted(path)
    tmp_path.chmod(0o1777)  # sticky: others cannot replace the file there
    assert read_trusted(path) == "text"


def test_nor_one_that_lies_or_is_linked_below_such_a_folder(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    (open_folder / "site").mkdir(parents=True)
    path = file(open_folder / "site", "text")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_trusted(link) == "text"
    open_folder.chmod(0o777)  # whoever can rename site can put any other file of root's in its place
    for name in (path, link):
        with pytest.raises(UserError, match=rf"the folder {open_folder} of {name} can be written by others"):
            read_trusted(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_nor_is_one_of_another_user(tmp_path: Path) -> None:
    path = file(tmp_path, "")
    os.chown(path, 1003, -1)
    with pytest.raises(UserError, match=r"belongs to user 1003: give it to root"):
        load(path)


def test_what_is_no_text_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"#" * (1 << 21))
    for name, complaint in [
        ("fifo", "is not a file"),
        ("binary", "not text in UTF-8"),
        ("long", "longer than"),
        (".", "not a file|Is a dir"),
    ]:
        with pytest.raises(UserError, match=complaint):
            read_trusted(tmp_path / name)
