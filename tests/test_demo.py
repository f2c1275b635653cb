"""`cargo xtask demo` as a newcomer meets it."""

import re
import signal
import subprocess
from pathlib import Path

import urllib3
from cluster import PROGRAMS, processes_of, wait_until

SHOWN = re.compile(r"inference +http://([0-9.:]+)/v2")


def run_demo(state: Path, log: Path) -> subprocess.Popen:
    arguments = [str(PROGRAMS / "xtask"), "demo", "--state-dir", str(state), "--no-build"]
    arguments += ["--http-port", "0", "--admin-port", "0"]
    with log.open("wb") as file:
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


def serving(demo: subprocess.Popen, log: Path) -> str:
    """Waits until the demo has shown everything; the inference address."""

    def address() -> str | None:
        assert demo.poll() is None, log.read_text()
        shown = SHOWN.search(log.read_text())
        return shown and shown[1]

    return wait_until(address, "the demo to show its addresses", limit=300)


def test_the_demo_shows_two_models_and_leaves_nothing_behind(tmp_path: Path):
    state, log = tmp_path / "state", tmp_path / "log"
    demo = run_demo(state, log)
    address = serving(demo, log)
    text = log.read_text()
    labels = re.findall(r"^ +([0-9.]+)% +(\S.*?) {2,}", text, re.MULTILINE)
    assert len(labels) == 5
    assert labels[0][1] == "Egyptian cat" and float(labels[0][0]) > 50
    assert "A cat sleeps on the warm windowsill." in text
    assert "a kitten is taking a nap" in text
    assert urllib3.request("GET", f"http://{address}/v2/health/ready").status == 200
    index = urllib3.request("POST", f"http://{address}/v2/repository/index").json()
    assert {entry["name"]: entry["state"] for entry in index} == {"efficientnet-lite0": "READY", "minilm": "READY"}

    demo.send_signal(signal.SIGINT)
    assert demo.wait(30) == 0, log.read_text()
    assert processes_of(state) == {}

    assert "Exporting" in text
    demo = run_demo(state, log)
    serving(demo, log)
    assert "Exporting" not in log.read_text(), "a second run begins where the first one ended"
    demo.terminate()
    assert demo.wait(30) == 0, log.read_text()
    assert processes_of(state) == {}
