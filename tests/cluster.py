"""Gateway, agents and workers as processes in a folder of their own, and that none of them is left behind."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from http_admin import Admin
from network import Namespace

PROGRAMS = Path(os.environ.get("PACKHORSE_TEST_PROGRAMS", Path(__file__).parent.parent / "target/debug"))
# The build of the programs, for reports.
BUILD = "release" if PROGRAMS.name == "release" else "development"
T = TypeVar("T")
OURS = ("packhorse-gateway", "packhorse-agent", "packhorse-worker")


def wait_until(check: Callable[[], T], what: str, limit: float = 30.0) -> T:
    """Calls `check` until it returns something true, and returns that."""
    end = time.monotonic() + limit
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"gave up after {limit} s waiting for {what}"
        time.sleep(0.02)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_running(pid: int) -> bool:
    """Whether the process is there, or a thread of it, and is no zombie.

    A killed process whose first thread has ended is shown as a zombie while its other threads end, and those still hold its files and locks.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, threads = fields[0], int(fields[17])
    return state != "Z" or threads > 1


def processes_of(folder: Path) -> dict[int, str]:
    """The programs of Packhorse that run with this folder in their arguments, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or not is_running(int(entry.name)):
            continue
        try:
            # " (deleted)" stands behind a program that was built anew meanwhile.
            program = os.path.basename(os.readlink(entry / "exe")).removesuffix(" (deleted)")
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if program.startswith(OURS) and str(folder) in arguments:
            found[int(entry.name)] = program
    return found


class Process:
    """A started program."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str] | None = None):
        self.log = log
        self.said_before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env=os.environ | (environment or {}),
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def is_running(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.popen.kill()
        self.popen.wait(10)

    def stop(self, limit: float = 30.0) -> int:
        """SIGTERM; the exit status."""
        self.popen.terminate()
        return self.popen.wait(limit)

    def said(self) -> str:
        """What it has written, at most the last of it."""
        return self.log.read_bytes()[self.said_before :].decode(errors="replace")[-20000:]


class Cluster:
    """A gateway and its agents on this machine; with the file of an authority if it uses TLS, and as a user with another group if given."""

    def __init__(
        self,
        folder: Path,
        *gateway_flags: str,
        listen: str = "127.0.0.1:0",
        admin_listen: str = "127.0.0.1:0",
        ca: Path | None = None,
        user: tuple[int, int] | None = None,
    ):
        self.folder = folder
        self.ca = ca
        self.user = user
        self.state = folder / "gateway"
        self.gateway_flags = gateway_flags
        self.agents: dict[str, Process] = {}
        self.gateway: Process | None = None
        self.inference, self.admin_address = listen, admin_listen
        # By a variable, which former versions do not know.
        self.grpc: str | None = "127.0.0.1:0"
        self.start_gateway()

    def start_gateway(self) -> None:
        """Starts it, again at the same addresses if it has been there."""
        arguments = [str(PROGRAMS / "packhorse-gateway"), "--state-dir", str(self.state)]
        arguments += ["--listen", self.inference, "--admin-listen", self.admin_address, *self.gateway_flags]
        if self.user:
            user, group = self.user
            arguments = ["setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={group}", *arguments]
        self.gateway = Process(arguments, self.folder / "gateway.log", {"PACKHORSE_GRPC_LISTEN": self.grpc or "off"})

        def listening() -> dict | None:
            assert self.gateway.is_running(), f"the gateway ended:\n{self.gateway.said()}"
            try:
                endpoints = json.loads((self.state / "endpoints.json").read_text())
            except FileNotFoundError:
                return None
            return endpoints if endpoints["pid"] == self.gateway.pid else None

        endpoints = wait_until(listening, "the gateway to listen")
        self.inference, self.grpc, self.admin_address = endpoints["inference"], endpoints.get("grpc"), endpoints["admin"]
        self.admin = Admin(self.admin_address, self.admin_token(), self.ca)
        self.agent_token = (self.state / "agent-token").read_text().strip()

    def admin_token(self) -> str:
        """The token that was given, or that the gateway has made."""
        flags = list(self.gateway_flags)
        given = Path(flags[flags.index("--admin-token-file") + 1]) if "--admin-token-file" in flags else self.state / "admin-token"
        return given.read_text().strip()

    def start_agent(
        self,
        name: str,
        *flags: str,
        environment: dict[str, str] | None = None,
        namespace: Namespace | None = None,
        joins: bool = True,
        prefix: tuple[str, ...] = (),
    ) -> Process:
        """Starts an agent, again with the same folder if it has been there, and waits until it holds the lease of its node, if it will. `prefix` starts it by another program."""
        gateway = self.admin_address
        if namespace:
            gateway = f"{namespace.here}:{gateway.rsplit(':', 1)[1]}"
        scheme = "https" if self.ca else "http"
        arguments = [str(PROGRAMS / "packhorse-agent"), "--gateway", f"{scheme}://{gateway}", "--node", name]
        if self.ca:
            arguments += ["--ca-file", str(self.ca)]
        arguments += ["--state-dir", str(self.folder / name), "--token-file", str(self.state / "agent-token"), *flags]
        if namespace:
            arguments = namespace.command([*arguments, "--listen-address", namespace.address])
        arguments = [*prefix, *arguments]
        agent = self.agents[name] = Process(arguments, self.folder / f"{name}.log", environment)

        def known() -> bool:
            assert agent.is_running(), f"the agent ended:\n{agent.said()}"
            # The gateway may still take the node for that of an agent before, so the agent itself is asked.
            nodes = self.admin.get("/v1/nodes")
            return "lease held" in agent.said() and any(node["name"] == name for node in nodes)

        if joins:
            wait_until(known, f"node {name} to join")
        return agent

    def worker_pids(self, model: str) -> list[int]:
        """The worker processes of a model's replicas."""
        replicas = self.admin.get(f"/v1/models/{model}")["replicas"]
        return sorted(replica["pid"] for replica in replicas if replica["pid"] is not None)

    def close(self) -> None:
        """Ends everything and asserts that nothing is left."""
        for agent in self.agents.values():
            if agent.is_running():
                agent.stop()
        if self.gateway.is_running():
            self.gateway.stop()
        for pid in processes_of(self.folder):
            # Workers outlive their agent by design: asked to, they end.
            os.kill(pid, signal.SIGTERM)
        try:
            wait_until(lambda: not processes_of(self.folder), "every process to end")
        finally:
            for pid in processes_of(self.folder):
                os.kill(pid, signal.SIGKILL)
