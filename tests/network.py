"""Nodes with a network of their own: a network namespace each, which can be cut off from this one."""

import os
import subprocess

# The addresses of the pairs: 10.213.N.1 here, 10.213.N.2 in the namespace.
NETWORK = "10.213"


def why_not() -> str | None:
    """The reason why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"packhorse-try-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
        if made.returncode != 0:
            return made.stderr.strip()
        # A namespace can often be made where no pair of interfaces can.
        pair = subprocess.run(["ip", "link", "add", "ph-try", "type", "veth", "peer", "name", "ph-try-in"], capture_output=True, text=True)
        if pair.returncode != 0:
            return pair.stderr.strip()
        run("link", "del", "ph-try")
    except FileNotFoundError:
        return "there is no ip command (Debian: iproute2)"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None


def run(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Namespace:
    """A network namespace with one interface to this one."""

    def __init__(self, number: int):
        self.name, self.interface = f"packhorse-{os.getpid()}-{number}", f"ph{os.getpid() % 100000}n{number}"
        self.here, self.address = f"{NETWORK}.{number}.1", f"{NETWORK}.{number}.2"
        inside = f"{self.interface}i"
        run("netns", "add", self.name)
        try:
            run("link", "add", self.interface, "type", "veth", "peer", "name", inside, "netns", self.name)
            run("addr", "add", f"{self.here}/24", "dev", self.interface)
            run("link", "set", self.interface, "up")
            run("-n", self.name, "addr", "add", f"{self.address}/24", "dev", inside)
            run("-n", self.name, "link", "set", inside, "up")
            run("-n", self.name, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def command(self, arguments: list[str]) -> list[str]:
        """The command that runs a program inside."""
        return ["ip", "netns", "exec", self.name, *arguments]

    def cut(self) -> None:
        """Nothing arrives any more, in either direction, and nobody is told."""
        run("-n", self.name, "link", "set", f"{self.interface}i", "down")

    def mend(self) -> None:
        run("-n", self.name, "link", "set", f"{self.interface}i", "up")

    def close(self) -> None:
        """The interface goes with its namespace."""
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)
        subprocess.run(["ip", "link", "del", self.interface], capture_output=True)
