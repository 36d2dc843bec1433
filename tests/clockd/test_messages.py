import json

import pytest

from megatron_energy.clockd.messages import LONGEST_LINE_BYTES, Refusal, Request, encode, parse

LEASE = "0123456789abcdef"


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ('{"op":"hello"}', Request("hello")),
        ('{"op":"status","id":3}', Request("status", 3)),
        ('{"op":"lease","gpus":["GPU-a","GPU-b"],"ttl_s":60}', Request("lease", gpus=("GPU-a", "GPU-b"), ttl_s=60.0)),
        (f'{{"op":"clock","lease":"{LEASE}","gpu":"GPU-a","max_mhz":900}}', Request("clock", lease=LEASE, gpus=("GPU-a",), max_mhz=900)),
        (f'{{"op":"clock","lease":"{LEASE}","gpu":"GPU-a","max_mhz":null}}', Request("clock", lease=LEASE, gpus=("GPU-a",))),
        (
            f'{{"op":"power","lease":"{LEASE}","gpu":"GPU-a","limit_w":250.5}}',
            Request("power", lease=LEASE, gpus=("GPU-a",), limit_mw=250_500),
        ),
        (f'{{"op":"renew","lease":"{LEASE}"}}', Request("renew", lease=LEASE)),
        ('{"op":"restore","gpus":null}', Request("restore")),
    ],
)
def test_what_is_understood(line: str, request_: Request) -> None:
    assert parse(line.encode()) == request_


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * LONGEST_LINE_BYTES,
        b'{"a":' * 1500,
        b'{"op":"hello","op":"status"}',
        b'{"op":"hello","id":-1}',
        b'{"op":"hello","id":true}',
        b'{"op":"hello","id":' + b"9" * 8000 + b"}",
        b'{"op":"hello","more":1}',
        b'{"op":["hello"]}',
        b'{"op":"reboot"}',
        b'{"op":"lease","gpus":["GPU-a"]}',
        b'{"op":"lease","gpus":[],"ttl_s":60}',
        b'{"op":"lease","gpus":["GPU-a","GPU-a"],"ttl_s":60}',
        b'{"op":"lease","gpus":"GPU-a","ttl_s":60}',
        b'{"op":"lease","gpus":["../etc"],"ttl_s":60}',
        b'{"op":"lease","gpus":["GPU-a"],"ttl_s":NaN}',
        b'{"op":"lease","gpus":["GPU-a"],"ttl_s":1e999}',
        b'{"op":"lease","gpus":["GPU-a"],"ttl_s":true}',
        b'{"op":"lease","gpus":["GPU-a"],"ttl_s":0}',
        b'{"op":"clock","lease":"0123456789abcdef","gpu":"GPU-a","max_mhz":900.0}',
        b'{"op":"clock","lease":"0123456789abcdef","gpu":"GPU-a","max_mhz":0}',
        b'{"op":"clock","lease":"0123456789abcdef","gpu":"GPU-a","max_mhz":true}',
        b'{"op":"clock","lease":"0123456789ABCDEF","gpu":"GPU-a","max_mhz":900}',
        b'{"op":"clock","lease":7,"gpu":"GPU-a","max_mhz":900}',
        b'{"op":"power","lease":"0123456789abcdef","gpu":"GPU-a","limit_w":Infinity}',
        b'{"op":"power","lease":"0123456789abcdef","gpu":"GPU-a","limit_w":"250"}',
        b'{"op":"renew","lease":"\\ud800"}',
    ],
)
def test_what_is_not(line: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse(line)
    assert refused.value.kind == "malformed"


def test_a_reply_is_one_line() -> None:
    line = encode({"message": "two\nlines"})
    assert line.count(b"\n") == 1 and json.loads(line) == {"message": "two\nlines"}
