"""Pictures of TensorBoard's pages for a log directory, made with a headless Chromium: to see what a user will see.

Needs the packages chromium and chromium-driver. The driver is spoken to in plain HTTP (https://www.w3.org/TR/webdriver2/).

Example::

    python tools/look_tensorboard.py runs/quickstart/tensorboard --out /tmp/pages --pages custom_scalars timeseries
"""

import argparse
import base64
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGES = ("timeseries", "custom_scalars", "text", "images", "hparams")
START_TIMEOUT_S = 60
CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log_dir", type=Path, help="what TensorBoard's --logdir gets")
    parser.add_argument("--out", type=Path, default=Path("."), help="where the PNG files go")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES, help="which of them; default: all")
    parser.add_argument("--size", default="1600,2400", help="window, width,height in pixels")
    parser.add_argument("--wait", type=float, default=10, help="seconds until a page counts as drawn")
    options = parser.parse_args()
    browser, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if browser is None or driver is None:
        print("no Chromium with its driver found: install the packages chromium and chromium-driver", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    port, driver_port = free_port(), free_port()
    server = [sys.executable, "-m", "tensorboard.main", "--logdir", str(options.log_dir), "--host", "127.0.0.1", "--port", str(port)]
    with running(server), running([driver, f"--port={driver_port}"]), tempfile.TemporaryDirectory() as profile:
        wait_for(f"http://127.0.0.1:{port}/data/runs")
        wait_for(f"http://127.0.0.1:{driver_port}/status")
        arguments = [*CHROMIUM_FLAGS, f"--user-data-dir={profile}", f"--window-size={options.size}"]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"binary": browser, "args": arguments}}
        sessions = f"http://127.0.0.1:{driver_port}/session"
        session = f"{sessions}/{post(sessions, {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"
        try:
            for page in options.pages:
                target = options.out / f"{page}.png"
                take_picture(session, f"http://127.0.0.1:{port}/?darkMode=false#{page}", target, options.wait)
                print(target)
        finally:
            urllib.request.urlopen(urllib.request.Request(session, method="DELETE"), timeout=30).close()
    return 0


def take_picture(session: str, url: str, target: Path, wait_s: float) -> None:
    """Open a page, let its charts be drawn, save it as PNG."""
    post(f"{session}/url", {"url": "about:blank"})  # else only the fragment changes, which the pages do not follow
    post(f"{session}/url", {"url": url})
    time.sleep(wait_s)
    with urllib.request.urlopen(f"{session}/screenshot", timeout=60) as answer:
        target.write_bytes(base64.b64decode(json.load(answer)["value"]))


def post(url: str, body: dict[str, Any]) -> Any:
    """Send a command to the driver and return its value."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["value"]


def free_port() -> int:
    """A port of this host that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def running(command: Sequence[str]) -> Iterator[None]:
    """Run a server for as long as the block lasts."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def wait_for(url: str) -> None:
    """Until a server answers with something: TensorBoard with its runs, the driver with its state.

    Raises:
        TimeoutError: it does not.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if json.load(answer):
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.5)
    raise TimeoutError(f"nothing at {url} within {START_TIMEOUT_S} s: is there a log in that directory?")


if __name__ == "__main__":
    sys.exit(main())
