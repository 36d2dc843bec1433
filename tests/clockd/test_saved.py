import json
import os
import stat
from pathlib import Path

import pytest

from megatron_energy.clockd.rules import Range
from megatron_energy.clockd.saved import STATE_FILE, Saved, StateDirectory
from megatron_energy.errors import UserError

CHANGED = Saved(clocks=True, power_limit_mw=300_000, own_limits_mw=(280_000, 250_000))


def test_it_survives_its_process(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    state.site_mhz = Range(300, 1200)
    state.put("GPU-a", CHANGED)
    state.put("GPU-b", Saved(clocks=True))
    state.put("GPU-b", Saved())
    state.close()  # as the kernel does for a killed process
    again = StateDirectory(tmp_path / "state")
    assert (again.uuids(), again.get("GPU-a"), again.get("GPU-b"), again.site_mhz) == (("GPU-a",), CHANGED, Saved(), Range(300, 1200))
    again.close()


def test_only_clockd_can_read_it(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    state.put("GPU-a", CHANGED)
    state.close()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state", *(tmp_path / "state").iterdir())]
    assert modes == [0o700, 0o600, 0o600]


def test_after_a_reboot_it_is_put_away(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, boot_id="first")
    state.put("GPU-a", CHANGED)
    state.close()
    state = StateDirectory(tmp_path, boot_id="second")
    assert (state.uuids(), state.from_earlier_boot) == ((), True)
    state.close()


def test_one_at_a_time(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    with pytest.raises(UserError, match="clockd is already running with the state directory"):
        StateDirectory(tmp_path)
    state.close()
    StateDirectory(tmp_path).close()


def test_what_cannot_be_kept_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDirectory(tmp_path)
    state.put("GPU-a", Saved(clocks=True))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        state.put("GPU-a", CHANGED)
    assert state.get("GPU-a") == Saved(clocks=True)
    state.close()


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "[" * 100_000, '{"version": 2}', '{"version": 1}'),
        '{"version": 1, "boot_id": "b", "site_mhz": [1], "gpus": {}}',
        '{"version": 1, "boot_id": "b", "site_mhz": null, "gpus": {"GPU-a": 1}}',
        '{"version": 1, "boot_id": "b", "site_mhz": null, "gpus": {"G": {"clocks": true, "power_limit_mw": 1e999, "own_limits_mw": []}}}',
    ],
)
def test_a_file_that_is_not_understood_stops_clockd(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE_FILE).write_text(content)
    with pytest.raises(UserError, match=r"cannot be understood .*: restore the GPUs by hand"):
        StateDirectory(tmp_path)


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.put("GPU-a", CHANGED)
    state.close()
    (tmp_path / f"{STATE_FILE}.new").write_text('{"version": 1, "gpus": {')
    state = StateDirectory(tmp_path)
    assert state.get("GPU-a") == CHANGED
    state.put("GPU-a", Saved())
    state.close()
    assert json.loads((tmp_path / STATE_FILE).read_text())["gpus"] == {}


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UserError, match="nobody else may write there"):
        StateDirectory(tmp_path)
