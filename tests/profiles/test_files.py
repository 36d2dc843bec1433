import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.profiles.files import load_profile, save_profile
from megatron_energy.profiles.profile import Curve, Profile

HEADER = "stage,instruction,frequency,time,energy\n"
ZEUS = HEADER + "0,forward,1200,0.5,100\n0,forward,1410,0.4,120\n0,backward,1410,0.8,240\n"


def written(tmp_path, text):
    path = tmp_path / "profile.csv"
    path.write_text(text)
    return path


def refused(tmp_path, text):
    path = written(tmp_path, text)
    with pytest.raises(UserError) as found:
        load_profile(path)
    message = str(found.value)
    assert "\n" not in message
    return message.replace(str(path), "FILE")


def test_zeus_file(tmp_path):
    profile = load_profile(written(tmp_path, ZEUS))
    forward = profile.curves[0, -1, "forward"]
    assert forward.clock_mhz.tolist() == [1410, 1200]
    assert forward.time_s.tolist() == [0.4, 0.5]
    assert forward.energy_j.tolist() == [120.0, 100.0]
    assert profile.blocking_power_w is None
    assert profile.provenance == {"source": "profile.csv"}


def test_scale_multiplies_time_and_energy_but_not_power(tmp_path):
    profile = load_profile(written(tmp_path, ZEUS + "0,blocking,0,2.0,160\n"), scale=10)
    assert profile.curves[0, -1, "forward"].time_s.tolist() == [4.0, 5.0]
    assert profile.curves[0, -1, "forward"].energy_j.tolist() == [1200.0, 1000.0]
    assert profile.blocking_power_w == pytest.approx(80.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scale_must_be_above_zero(tmp_path, scale):
    with pytest.raises(UserError, match="scale"):
        load_profile(written(tmp_path, ZEUS), scale)


def test_blocking_power_is_the_mean_over_stages_at_their_highest_clock(tmp_path):
    text = HEADER + "0,blocking,1410,1,80\n0,blocking,900,1,60\n1,blocking,1410,2,200\n"
    assert load_profile(written(tmp_path, text)).blocking_power_w == pytest.approx(90.0)


def test_chunk_column(tmp_path):
    text = "stage,chunk,instruction,frequency,time,energy\n0,0,forward,900,1,2\n0,1,forward,900,3,4\n0,,optimizer,0,5,6\n"
    curves = load_profile(written(tmp_path, text)).curves
    assert set(curves) == {(0, 0, "forward"), (0, 1, "forward"), (0, -1, "optimizer")}
    assert curves[0, -1, "optimizer"].clock_mhz.tolist() == [0]


def test_optional_columns(tmp_path):
    text = (
        "stage,instruction,frequency,time,energy,position,rank,memory_frequency,throttled,time_std,samples,power\n"
        "0,forward,900,9,9,first,0,1593,0,0.1,5,1\n"  # first microbatch: left out
        "0,forward,900,1,10,steady,0,1593,1,0.1,5,2\n"
        "0,forward,900,2,20,steady,1,1593,0,,,3\n"  # the slower rank decides the time; energies are averaged
        "0,forward,900,7,7,steady,0,1200,0,0.1,5,4\n"  # lower memory clock: left out
    )
    profile = load_profile(written(tmp_path, text))
    assert profile.curves[0, -1, "forward"].time_s.tolist() == [2.0]
    assert profile.curves[0, -1, "forward"].energy_j.tolist() == [15.0]
    assert profile.provenance["rows_of_first_or_last_microbatch"] == 1.0
    assert profile.provenance["rows_at_lower_memory_clocks"] == 1.0
    assert profile.provenance["throttled_rows"] == 1.0
    assert profile.provenance["ignored_columns"] == "power"


def test_repeated_equal_rows_are_one(tmp_path):
    assert len(load_profile(written(tmp_path, ZEUS + "0,backward,1410,0.8,240\n")).curves[0, -1, "backward"].clock_mhz) == 1


def test_saved_profile_is_read_back(tmp_path):
    curve = Curve(np.array([1410, 1200], dtype=np.int64), np.array([0.1 + 0.2, 1 / 3]), np.array([100.0, 1e-7]))
    chunk = Curve(np.array([1410, 1200], dtype=np.int64), np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    facts = {"source": "a run", "emulated": True, "power_limit_w": 400.0}
    profile = Profile({(0, -1, "forward"): curve, (0, 1, "backward"): chunk}, 83.64, facts)
    path = tmp_path / "new" / "p.csv"
    save_profile(profile, path)
    again = load_profile(path)
    assert again.provenance == facts
    assert again.blocking_power_w == pytest.approx(83.64)
    for key, value in profile.curves.items():
        for name in ("clock_mhz", "time_s", "energy_j"):
            assert getattr(again.curves[key], name).tolist() == getattr(value, name).tolist()
    assert [p.name for p in path.parent.iterdir()] == ["p.csv"]


def test_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save_profile(Profile({}), tmp_path / "file" / "p.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (HEADER, "no rows"),
        ("stage,instruction,frequency,time\n0,forward,900,1\n", "line 1: column energy is missing"),
        (HEADER + "0,forward,900,fast,1\n", "FILE, line 2, column time: 'fast' is not a number"),
        (HEADER + "0,forward,900,nan,1\n", "line 2, column time: 'nan' must be a finite number"),
        (HEADER + "0,forward,900,1,-3\n", "line 2, column energy: '-3' must be"),
        (HEADER + "0,forward,900.5,1,3\n", "line 2, column frequency: '900.5' must be a whole number"),
        (HEADER + "0,forward,,1,3\n", "line 2, column frequency: must be above zero for forward"),
        (HEADER + "0,forward,900,0,3\n", "line 2, column time: must be above zero for forward"),
        (HEADER + "0,,900,1,3\n", "line 2, column instruction: is empty"),
        (HEADER + "0,forward,900,1\n", "line 2: 4 values where the header names 5 columns"),
        (HEADER + "0,forward,900,1,3\n\n0,forward,900,2,3\n", "line 4, column time: forward of stage 0 at 900 MHz disagrees with line 2"),
        (HEADER + "0,forward,900,1,3\n0,forward,900,1,4\n", "line 3, column energy: forward of stage 0 at 900 MHz disagrees with line 2"),
        ("stage,chunk,instruction,frequency,time,energy\n0,,forward,900,1,2\n0,1,forward,900,3,4\n", "with and without a chunk"),
        (HEADER.strip() + ",position\n0,forward,900,1,3,middle\n", "column position: 'middle' must be one of"),
        (HEADER.strip() + ",position\n0,forward,900,1,3,first\n", "no row is steady"),
        (HEADER.strip() + ",throttled\n0,forward,900,1,3,perhaps\n", "column throttled: 'perhaps' must be true or false"),
        (HEADER.strip() + ",samples\n0,forward,900,1,3,many\n", "column samples: 'many' is not a number"),
    ],
)
def test_bad_content_is_told_by_place(tmp_path, text, message):
    assert message in refused(tmp_path, text)


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_profile(tmp_path / "none.csv")
    with pytest.raises(UserError, match="cannot be read"):
        load_profile(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00stage")
    with pytest.raises(UserError, match="cannot be read"):
        load_profile(tmp_path / "binary.csv")
