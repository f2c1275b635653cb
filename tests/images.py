"""Builds the images of `docker/` of programs that are built already, and runs them, without a daemon: buildah, podman, debootstrap."""

import os
import shutil
import subprocess
from pathlib import Path

from cluster import PROGRAMS

ROOT = Path(__file__).parent.parent
# The last one is what the network of containers is made with; podman does not depend on it.
TOOLS = ("buildah", "podman", "podman-compose", "debootstrap", "runc", "iptables")
BASE = "localhost/debian:bookworm-slim"
BUILDER = "localhost/packhorse-programs:test"

# No systemd, and no right to raise limits: what a container on a build machine has to do without.
CONTAINERS_CONF = """\
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""


class Unavailable(Exception):
    """This machine cannot run containers, with the reason."""


class Images:
    """A store of images and containers in a folder of its own."""

    def __init__(self, folder: Path):
        if os.geteuid() != 0:
            raise Unavailable("images are built as root")
        missing = [tool for tool in TOOLS if not shutil.which(tool)]
        if missing:
            raise Unavailable(f"not installed: {', '.join(missing)} (Debian's packages of these names)")
        self.folder = folder
        (folder / "containers.conf").write_text(CONTAINERS_CONF)
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
        )
        self.environment = os.environ | {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "BUILDAH_FORMAT": "docker",
        }

    def run(self, *command: str, environment: dict[str, str] | None = None, limit: float = 120) -> str:
        """Runs a command with this store; its standard output."""
        environment = self.environment | (environment or {})
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def make_base(self) -> None:
        """The base image, of this machine's Debian mirror. Its files are kept in `target` for the next time."""
        archive = ROOT / "target/images/bookworm.tar"
        if not archive.exists():
            root = self.folder / "root"
            packages = "--include=ca-certificates,libstdc++6"
            try:
                self.run("debootstrap", "--variant=minbase", packages, "bookworm", str(root), mirror(), limit=300)
            except AssertionError as error:
                raise Unavailable(f"debootstrap: {str(error)[-300:]}") from error
            archive.parent.mkdir(parents=True, exist_ok=True)
            part = archive.with_suffix(".part")
            # Neither the lists of packages nor the packages themselves.
            self.run("tar", "--exclude=./var/cache/apt/archives/*.deb", "-C", str(root), "-cf", str(part), ".")
            part.rename(archive)
            shutil.rmtree(root)
        context = self.folder / "base"
        context.mkdir()
        os.link(archive, context / "root.tar")
        (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nCMD [\"/bin/sh\"]\n")
        self.build(context, "Dockerfile", BASE)

    def make_programs(self) -> None:
        """The image that compiles, with the files of a release already in it: of the programs that the tests use."""
        context = self.folder / "programs"
        context.mkdir()
        dist = [str(PROGRAMS / "xtask"), "dist", "--no-archive", "--programs", str(PROGRAMS), "--output", str(context)]
        self.run(*dist, limit=300)
        (files,) = context.iterdir()
        files.rename(context / "packhorse")
        (context / "Dockerfile").write_text(f"FROM {BASE}\nCOPY packhorse /packhorse\n")
        self.build(context, "Dockerfile", BUILDER)

    def make(self, target: str, name: str) -> None:
        """An image of the repository."""
        arguments = ["--build-arg", f"BASE={BASE}", "--build-arg", f"BUILDER={BUILDER}", "--target", target, "--layers"]
        self.build(ROOT, "docker/Dockerfile", name, *arguments)

    def build(self, context: Path, dockerfile: str, name: str, *arguments: str) -> None:
        command = ["buildah", "bud", "--isolation", "chroot", "--network", "host", "--pull-never", "-t", name, *arguments]
        self.run(*command, "-f", str(context / dockerfile), str(context), limit=300)

    def probe(self) -> None:
        """Runs a container that does nothing."""
        try:
            self.podman("run", "--rm", "--network", "host", BASE, "true")
        except AssertionError as error:
            raise Unavailable(f"podman cannot run a container here: {str(error)[-300:]}") from error

    def podman(self, *arguments: str) -> str:
        return self.run("podman", *arguments)

    def size(self, image: str) -> int:
        """The bytes of an image's files, uncompressed."""
        return int(self.podman("image", "inspect", "--format", "{{.Size}}", image))

    def close(self) -> None:
        """Ends every container and removes everything."""
        for command in (["podman", "rm", "-fa"], ["podman", "network", "prune", "-f"], ["buildah", "rm", "-a"]):
            subprocess.run(command, env=self.environment, capture_output=True, timeout=120)
        shutil.rmtree(self.folder, ignore_errors=True)


def mirror() -> str:
    """The mirror from which this machine has its packages."""
    for file in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        for line in file.read_text().splitlines() if file.is_file() else []:
            words = line.split()
            if words[:1] == ["URIs:"]:
                return words[1]
            if words[:1] == ["deb"]:
                return next(word for word in words if "://" in word)
    return "http://deb.debian.org/debian"
