from typing import Any

import pytest

from megatron_energy.clockd.leases import Caller
from megatron_energy.clockd.messages import Request
from megatron_energy.clockd.peers import Peer
from megatron_energy.clockd.rules import Range, Rules
from megatron_energy.errors import UserError
from tests.clockd.fake_devices import Desk, caller, rule

A, B = "GPU-a", "GPU-b"


def lease(desk: Desk, who: Caller, *gpus: str, ttl_s: float = 60.0) -> dict[str, Any]:
    return desk.service.answer(who, Request("lease", gpus=gpus or (A,), ttl_s=ttl_s))


def clock(desk: Desk, who: Caller, name: str, max_mhz: int | None, gpu: str = A) -> dict[str, Any]:
    return desk.service.answer(who, Request("clock", lease=name, gpus=(gpu,), max_mhz=max_mhz))


def power(desk: Desk, who: Caller, name: str, limit_mw: int | None) -> dict[str, Any]:
    return desk.service.answer(who, Request("power", lease=name, gpus=(A,), limit_mw=limit_mw))


def test_a_lease_says_what_is_allowed() -> None:
    desk, who = Desk(site_mhz=Range(210, 1110)), caller()
    reply = lease(desk, who, A, B)
    assert reply["gpus"] == {uuid: {"clocks_mhz": [510, 1110], "power_w": [200.0, 400.0]} for uuid in (A, B)}
    assert clock(desk, who, reply["lease"], 810) == {"ok": True}
    assert desk.devices[A].locked_mhz == (210, 810)


def test_no_rule_no_lease_and_the_same_words_for_a_gpu_that_is_not_there() -> None:
    desk, who = Desk(rule(uids=frozenset({1003}), gpus=frozenset({A}))), caller()
    refusals = [lease(desk, who, gpu) for gpu in (B, "GPU-none")] + [lease(desk, caller(uid=1004), A)]
    assert [refusal["error"] for refusal in refusals] == ["denied"] * 3
    assert refusals[0]["message"] == refusals[1]["message"].replace("GPU-none", B)
    assert lease(desk, who, A, B)["error"] == "denied"  # all or none
    assert lease(desk, who, A)["ok"]


def test_the_first_fitting_rule_decides() -> None:
    strict = rule("strict", frozenset({1003}), clocks_mhz=Range(1110, 1410), power_mw=None)
    desk, who = Desk(strict, rule("open")), caller()
    name = lease(desk, who)["lease"]
    assert clock(desk, who, name, 810)["message"] == "the rules allow a clock of 1110 to 1410 MHz"
    assert power(desk, who, name, 300_000)["message"] == "the rules give you no control of the power limit"
    other = lease(desk, caller(uid=1004), B)
    assert other["gpus"][B]["clocks_mhz"] == [510, 1410]


def test_a_rule_and_a_site_without_a_common_clock_give_no_clock_control() -> None:
    desk, who = Desk(rule(clocks_mhz=Range(1300, 1410)), site_mhz=Range(210, 1110)), caller()
    name = lease(desk, who)["lease"]
    assert clock(desk, who, name, 1410)["message"] == "the rules give you no control of the clock"


def test_power_within_the_rules_and_the_limit_found() -> None:
    desk, who = Desk(), caller()
    desk.devices[A].limit_mw = 300_000
    name = lease(desk, who)["lease"]
    assert power(desk, who, name, 150_000)["message"] == "the rules allow a power limit of 200 to 400 W"
    assert power(desk, who, name, 350_000)["error"] == "denied"
    assert power(desk, who, name, 250_000) == {"ok": True}
    assert power(desk, who, name, None) == {"ok": True}
    assert desk.devices[A].limit_mw == 300_000


def test_a_lease_works_on_its_own_connection_only() -> None:
    desk, holder, thief = Desk(), caller(), caller(uid=1004, pid=43)
    name = lease(desk, holder)["lease"]
    for request in (
        Request("clock", lease=name, gpus=(A,), max_mhz=810),
        Request("power", lease=name, gpus=(A,), limit_mw=250_000),
        Request("renew", lease=name),
        Request("release", lease=name),
    ):
        assert desk.service.answer(thief, request) == {
            "ok": False,
            "error": "no-lease",
            "message": "this connection has no such lease",
        }
    assert lease(desk, thief)["message"] == f"{A} is leased by another user"
    assert lease(desk, caller(pid=44))["message"] == f"{A} is leased by process 42 of user 1003"
    assert desk.devices[A].changes == 0
    assert clock(desk, holder, name, 810, gpu=B)["message"] == f"the lease does not cover {B}"


def test_expiry() -> None:
    desk, who = Desk(), caller()
    name = lease(desk, who, ttl_s=10.0)["lease"]
    clock(desk, who, name, 810)
    assert desk.lending.next_due_s() == desk.clock.now_s + 10
    desk.clock.now_s += 9
    desk.lending.tick()
    assert desk.service.answer(who, Request("renew", lease=name)) == {"ok": True, "ttl_s": 10.0}
    desk.clock.now_s += 9.9
    desk.lending.tick()
    assert desk.devices[A].locked_mhz == (210, 810)
    desk.clock.now_s += 0.1
    desk.lending.tick()
    assert desk.devices[A].locked_mhz is None
    assert clock(desk, who, name, 810)["message"] == "the lease has ended: it was not renewed for 10 s"
    assert desk.devices[A].locked_mhz is None


def test_the_longest_time_is_the_rules() -> None:
    desk = Desk()
    assert lease(desk, caller(), ttl_s=3600.0)["ttl_s"] == 600


def test_a_lease_is_looked_at_again_when_it_is_renewed() -> None:
    job: set[str] = {A}
    desk = Desk(rule(gpus="slurm-job"), job_gpus=lambda _peer: frozenset(job))
    who = caller()
    name = lease(desk, who)["lease"]
    assert desk.service.answer(who, Request("renew", lease=name))["ok"]
    job.clear()  # the job is over, its process is not
    refused = desk.service.answer(who, Request("renew", lease=name))
    assert refused["error"] == "no-lease" and "no rule lets user 1003 use GPU-a" in refused["message"]


def test_a_job_that_cannot_be_told_is_denied_with_the_reason() -> None:
    def broken(_peer: Peer) -> frozenset[str]:
        raise UserError("4711.json is malformed")

    desk = Desk(rule(gpus="slurm-job"), job_gpus=broken)
    assert lease(desk, caller())["message"] == "the GPUs of your Slurm job cannot be told: 4711.json is malformed"


def test_forty_lowers_at_once_then_twenty_a_second() -> None:
    desk, who = Desk(), caller()
    name = lease(desk, who)["lease"]

    def lowers_granted(attempts: int) -> int:
        granted = 0
        for _ in range(attempts):
            granted += bool(clock(desk, who, name, 810)["ok"])
            if desk.controls.requested_mhz(A) == 810:
                assert clock(desk, who, name, 1110)["ok"], "a raise must never be held back"
        return granted

    assert lowers_granted(100) == 40
    desk.clock.now_s += 1.0
    assert lowers_granted(100) == 20
    who.messages._tokens = 0.0  # too many messages of other kinds do not hold back a raise either
    desk.clock.now_s += 0.5
    assert clock(desk, who, name, 1410)["ok"]


def test_another_connection_does_not_bring_more_lowers() -> None:
    desk = Desk()
    for pid in (1, 2):
        who = caller(pid=pid)
        name = lease(desk, who)["lease"]
        granted = sum(bool(clock(desk, who, name, 810)["ok"]) for _ in range(50))
        assert granted == (40 if pid == 1 else 0)
        desk.service.answer(who, Request("release", lease=name))


def test_messages_are_counted_per_connection() -> None:
    desk, noisy = Desk(), caller()
    answers = [desk.service.answer(noisy, Request("hello")) for _ in range(500)]
    assert sum(bool(answer["ok"]) for answer in answers) == 400
    assert answers[-1]["message"] == "too many requests: send fewer than 200 per second"
    assert desk.service.answer(caller(pid=43), Request("hello"))["ok"]


def test_what_is_urgent() -> None:
    desk, who = Desk(), caller()
    name = lease(desk, who)["lease"]
    clock(desk, who, name, 810)

    def urgent(request: Request, asking: Caller = who) -> bool:
        return desk.service.urgent(asking, request)

    assert urgent(Request("clock", lease=name, gpus=(A,), max_mhz=1410))
    assert urgent(Request("clock", lease=name, gpus=(A,), max_mhz=None))
    assert urgent(Request("release", lease=name))
    assert urgent(Request("evict"))
    assert not urgent(Request("clock", lease=name, gpus=(A,), max_mhz=510))
    assert not urgent(Request("clock", lease=name, gpus=(B,), max_mhz=1410))
    assert not urgent(Request("renew", lease=name))
    assert not urgent(Request("clock", lease=name, gpus=(A,), max_mhz=1410), caller(uid=1004))
    assert not urgent(Request("release", lease=name), caller(uid=1004))
    assert not urgent(Request("restore"), caller(uid=1004))
    assert urgent(Request("restore"), caller(uid=0))
    assert not urgent(Request("restore"))  # which he may not
    assert not urgent(Request("evict", gpus=(B,)))  # of which he holds none: nothing comes back, so it may have to wait
    assert not urgent(Request("evict"), caller(uid=1004))


def test_status_shows_each_what_is_his() -> None:
    desk = Desk(rule(uids=frozenset({1003}), gpus=frozenset({A})), rule("other", frozenset({1004})))
    holder = caller()
    name = lease(desk, holder)["lease"]
    clock(desk, holder, name, 810)
    power(desk, holder, name, 250_000)

    def gpus(who: Caller) -> dict[str, Any]:
        return {gpu["uuid"]: gpu for gpu in desk.service.answer(who, Request("status"))["gpus"]}

    assert set(gpus(holder)) == {A}
    expected = {
        "pid": 42,
        "uid": 1003,
        "expires_in_s": 60.0,
        "clock_requests": 1,
        "max_mhz": 810,
        "power_limit_w": 250.0,
        "saved_power_limit_w": 400.0,
    }
    assert gpus(holder)[A]["lease"] == expected
    stranger = gpus(caller(uid=1004))
    assert stranger == {A: {"uuid": A, "rule": "other", "leased": True}, B: {"uuid": B, "rule": "other", "leased": False}}
    assert gpus(caller(uid=1005)) == {}
    assert gpus(caller(uid=0))[A]["lease"] == expected  # operators see everything


def test_only_operators_restore() -> None:
    desk, who = Desk(), caller()
    name = lease(desk, who)["lease"]
    clock(desk, who, name, 810)
    assert desk.service.answer(caller(uid=1004), Request("restore"))["error"] == "denied"
    assert desk.service.answer(caller(uid=1004), Request("evict", gpus=(A,)))["error"] == "no-lease"
    assert desk.service.answer(caller(uid=1004), Request("evict"))["released"] == []
    assert desk.devices[A].locked_mhz == (210, 810)
    assert desk.service.answer(caller(uid=0), Request("restore"))["restored"] == [A]
    assert desk.devices[A].locked_mhz is None
    assert desk.service.answer(caller(uid=0), Request("restore", gpus=("GPU-none",)))["error"] == "denied"


def test_unusable_rules_deny_everybody_everything() -> None:
    desk, holder = Desk(), caller()
    name = lease(desk, holder)["lease"]
    clock(desk, holder, name, 810)
    desk.lending.use(Rules(unusable="/etc/x: secret = 1"))
    assert desk.devices[A].locked_mhz is None
    assert clock(desk, holder, name, 810)["message"] == "the lease has ended: clockd cannot use its rules file"
    assert lease(desk, holder)["message"] == "everything is denied: clockd cannot use its rules file"
    assert desk.service.answer(holder, Request("status"))["gpus"] == []
    assert lease(desk, caller(uid=0))["message"] == "everything is denied: /etc/x: secret = 1"


def test_a_failing_driver_is_reported_and_nobody_else_gets_the_gpu() -> None:
    desk, who = Desk(), caller()
    name = lease(desk, who)["lease"]
    clock(desk, who, name, 810)
    desk.devices[A].failing = True
    assert clock(desk, who, name, 1110) == {"ok": False, "error": "failed", "message": "the driver says no"}
    assert desk.service.answer(who, Request("release", lease=name))["unrestored"] == {A: "the driver says no"}
    assert lease(desk, caller(pid=43))["message"] == f"{A} could not be restored yet: the driver says no"


def test_a_split_gpu_is_denied() -> None:
    desk = Desk()
    desk.split.add(A)
    assert "split by MIG" in lease(desk, caller())["message"]


def test_the_log_of_a_lease() -> None:
    desk, who = Desk(), caller()
    name = lease(desk, who)["lease"]
    clock(desk, who, name, 810)
    desk.lending.end_of(who, "its process has ended")
    assert desk.events.names() == ["leased", "lease-ended", "restored"]
    ended = dict(desk.events.all)["lease-ended"]
    assert ended == {"lease": name, "pid": 42, "uid": 1003, "gpus": [A], "why": "its process has ended", "requests": 1}


@pytest.mark.parametrize("operation", ["hello", "status"])
def test_emulated_gpus_are_called_so(operation: Any) -> None:
    assert Desk().service.answer(caller(), Request(operation))["emulated"] is True
