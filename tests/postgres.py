"""A private server of PostgreSQL, of the machine's own programs, that ends with the test."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from cluster import wait_until


def programs() -> Path:
    """The folder with initdb; the test is skipped, and says why, where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("no PostgreSQL: /usr/lib/postgresql/*/bin/initdb is not there (apt-get install postgresql)")
    return found[-1].parent


class Postgres:
    """A server on a socket in a folder of its own. PostgreSQL refuses root, so it then runs as nobody."""

    def __init__(self):
        self.programs = programs()
        # Short, as the path of a socket is at most 107 bytes long, and open to the other user.
        self.folder = Path(tempfile.mkdtemp(prefix="packhorse-pg-", dir="/tmp"))
        self.process: subprocess.Popen | None = None
        self.prefix = ["setpriv", "--pdeathsig", "QUIT"]
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody", "nogroup")
            self.prefix += ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        initdb = [*self.prefix, self.programs / "initdb", "-D", self.folder / "data", "-U", "packhorse", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=self.folder)
        self.start()

    def start(self) -> None:
        """Starts it, again where it was stopped."""
        settings = ["listen_addresses=", "fsync=off", "max_connections=100"]
        flags = [flag for setting in settings for flag in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            arguments = [*self.prefix, self.programs / "postgres", "-D", self.folder / "data", "-k", self.folder, *flags]
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)
        ready = [self.programs / "pg_isready", "-q", "-h", self.folder, "-U", "packhorse", "-d", "postgres"]
        wait_until(lambda: subprocess.run(ready).returncode == 0, "PostgreSQL to start")

    def crash(self) -> None:
        """Ends it at once, with all of its sessions."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(20)

    def database(self, name: str) -> str:
        """Makes a database; its URL."""
        subprocess.run([self.programs / "createdb", "-h", self.folder, "-U", "packhorse", name], check=True)
        return f"postgres://packhorse@localhost/{name}?host={self.folder}"

    def ask(self, database: str, statement: str) -> str:
        """The answer to a statement."""
        psql = [self.programs / "psql", "-h", self.folder, "-U", "packhorse", "-d", database, "-At", "-c", statement]
        return subprocess.run(psql, check=True, capture_output=True, text=True).stdout.strip()

    def close(self) -> None:
        if self.process.poll() is None:
            self.crash()
        shutil.rmtree(self.folder)
