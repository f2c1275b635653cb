"""A private authority and its certificates, made by `packhorse certs`."""

import ssl
import subprocess
from pathlib import Path

from cluster import PROGRAMS


def command(*arguments: str) -> subprocess.CompletedProcess:
    """A run of the command."""
    return subprocess.run([str(PROGRAMS / "packhorse"), *arguments], capture_output=True, text=True, timeout=60)


class Authority:
    """A private authority with its certificates, made by `packhorse certs`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.ca = folder / "ca.pem"
        self.made = 0
        assert command("certs", "init", str(folder)).returncode == 0

    def issue(self, name: str, *ips: str, gateway: bool = False) -> tuple[Path, Path]:
        """A new certificate and its key."""
        flags = [flag for ip in ips for flag in ("--ip", ip)]
        flags += ["--gateway"] if gateway else []
        issued = command("certs", "issue", str(self.folder), name, *flags)
        assert issued.returncode == 0, issued.stderr
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def replace(self, pair: tuple[Path, Path]) -> None:
        """Has new files at the place of others, as a mounted secret of Kubernetes would."""
        self.made += 1
        for new, old in zip(self.issue(f"new{self.made}", "127.0.0.1"), pair, strict=True):
            new.rename(old)

    def context(self) -> ssl.SSLContext:
        """Of a client that trusts this authority only."""
        return ssl.create_default_context(cafile=str(self.ca))
