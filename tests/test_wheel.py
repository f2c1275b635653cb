"""The Python package, of the programs that the tests use: pip installs it beside PyTorch, it serves, and nothing of it is left behind."""

import json
import re
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cluster import PROGRAMS, processes_of
from http_admin import request
from test_serve import Serve

SCRIPTS = ["packhorse", "packhorse-lab", "packhorse-gateway", "packhorse-agent", "packhorse-worker"]
SCORER = """
import torch

def scorer():
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    return model, torch.randn(2, 4)
"""
# What `import torch` of these tests finds.
PACKAGES = sysconfig.get_path("purelib")


def run(*command: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, env=environment)


class Environment:
    """A virtual environment of its own, with nothing in it."""

    def __init__(self, folder: Path):
        self.python = folder / "bin/python"
        made = run(sys.executable, "-m", "venv", "--without-pip", folder)
        assert made.returncode == 0, made.stderr
        self.packages = Path(run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())

    def pip(self, *arguments: str | Path) -> None:
        done = run(sys.executable, "-m", "pip", "--python", self.python, *arguments)
        assert done.returncode == 0, done.stderr

    def install(self, wheel: Path) -> None:
        self.pip("install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)

    def script(self, name: str) -> Path:
        return self.python.with_name(name)

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess:
        """Runs a console script, which is told nothing by its environment."""
        return run(self.script(name), *arguments, environment={"HOME": str(self.python.parent)})

    @contextmanager
    def seeing(self, folder: str | Path) -> Iterator[None]:
        """Lets it import what is in another folder, too."""
        file = self.packages / "others.pth"
        file.write_text(f"{folder}\n")
        try:
            yield
        finally:
            file.unlink()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("wheel")
    done = run(PROGRAMS / "xtask", "wheel", "--programs", PROGRAMS, "--output", output)
    assert done.returncode == 0, done.stderr
    (wheel,) = output.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.install(wheel)
    return environment


def test_it_depends_on_the_pytorch_that_workers_are_linked_with(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(name).decode().splitlines()
    major, minor = torch.__version__.split(".")[:2]
    assert f"Requires-Dist: torch=={major}.{minor}.*" in lines


def test_its_bytes_depend_on_the_programs_alone(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    assert {member.date_time for member in members} == {(1980, 1, 1, 0, 0, 0)}
    names = [member.filename for member in members]
    for folder in ("packhorse/bin/", "packhorse/lib/"):
        of_folder = [name for name in names if name.startswith(folder)]
        assert of_folder == sorted(of_folder)
    assert names[-1].endswith("/RECORD")


def test_its_tag_is_that_of_the_newest_glibc_that_a_program_needs(wheel: Path, installed: Environment):
    needed = set()
    for file in [*(installed.packages / "packhorse/bin").iterdir(), *(installed.packages / "packhorse/lib").iterdir()]:
        symbols = run("objdump", "--dynamic-syms", file).stdout
        needed |= {tuple(int(number) for number in version) for version in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)}
    major, minor = max(needed)
    assert wheel.name.endswith(f"-py3-none-manylinux_{major}_{minor}_x86_64.whl")


def run_path(program: Path) -> list[str]:
    """The places of libraries that a program is linked with."""
    said = run("readelf", "--dynamic", program).stdout
    (found,) = re.findall(r"Library runpath: \[(.*)\]", said)
    return found.split(":")


def test_only_the_worker_of_a_package_looks_for_pytorch_beside_it(installed: Environment):
    place = "$ORIGIN/../../torch/lib"
    assert place in run_path(installed.packages / "packhorse/bin/packhorse-worker")
    # From a release archive that would be a folder of whoever may write there.
    assert place not in run_path(PROGRAMS / "packhorse-worker")


def test_from_pip_install_to_an_answer_and_back(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "scorer.py").write_text(SCORER)
    environment = Environment(tmp_path / "environment")
    before = set((tmp_path / "environment").rglob("*"))
    with environment.seeing(PACKAGES):
        begin = time.monotonic()
        environment.install(wheel)
        installed = time.monotonic()
        for script in SCRIPTS:
            assert environment.run(script, "--version").stdout.split()[0] == script
        exported = environment.run("packhorse", "export", f"{tmp_path}/scorer.py:scorer", f"{tmp_path}/models/scorer", "--slo-ms", "5000")
        assert exported.returncode == 0, exported.stderr
        serve = Serve(tmp_path, "--devices", "cpu:1", str(tmp_path / "models"), program=environment.script("packhorse"))
        try:
            serve.wait_until_ready()
            serve.admin.wait_for_state("scorer", "ready", limit=120)
            answer = request(serve.inference, "POST", "/v2/models/scorer/infer", (tmp_path / "models/scorer/request.json").read_bytes())
            end = time.monotonic()
            assert answer.status == 200, answer
            given, expected = (json.loads(text)["outputs"][0] for text in (answer.body, (tmp_path / "models/scorer/answer.json").read_text()))
            assert given["shape"] == expected["shape"]
            torch.testing.assert_close(torch.tensor(given["data"]), torch.tensor(expected["data"]))
            given = Path(f"/proc/{serve.pid_of('packhorse-agent')}/environ").read_bytes().split(b"\0")
            assert f"PACKHORSE_LIBTORCH={PACKAGES}/torch".encode() in given
            assert serve.process.stop() == 0
        finally:
            if serve.process.is_running():
                serve.process.kill()
        assert processes_of(tmp_path) == {}
        environment.pip("uninstall", "--yes", "packhorse")
    assert set((tmp_path / "environment").rglob("*")) == before
    with capsys.disabled():
        print(f"\nfrom pip install to the first answer of an exported model: {end - begin:.1f} s, of which pip took {installed - begin:.1f} s")


def test_without_pytorch_only_what_starts_workers_says_what_to_install(installed: Environment):
    for script, *arguments in (["packhorse", "serve"], ["packhorse-agent"], ["packhorse-worker"]):
        done = installed.run(script, *arguments)
        assert done.returncode == 1
        assert re.fullmatch(r"packhorse \S+ needs PyTorch 2\.\d+, and this Python has none: pip install 'torch==2\.\d+\.\*', or .*\n", done.stderr)
    for script, *arguments in (["packhorse", "serve", "--help"], ["packhorse-agent", "--version"], ["packhorse-gateway", "--help"]):
        done = installed.run(script, *arguments)
        assert done.returncode == 0, done.stderr


def test_another_pytorch_is_named(installed: Environment, tmp_path: Path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('it must not be imported')\n")
    (package / "version.py").write_text("__version__ = '2.10.1+cpu'\n")
    with installed.seeing(tmp_path):
        done = installed.run("packhorse", "serve")
        assert done.returncode == 1
        assert f"this Python has 2.10.1+cpu in {package}: pip install 'torch==" in done.stderr
        named = installed.run("packhorse", "serve", "--libtorch", str(tmp_path), "--listen", "nowhere")
        assert named.returncode == 2 and "nowhere" in named.stderr


def test_the_package_is_a_program(installed: Environment):
    done = run(installed.python, "-m", "packhorse", "--version")
    assert done.stdout == installed.run("packhorse", "--version").stdout != ""
