"""The release archive, of the programs that the tests use: what it contains, that it is complete, and that it can be made again."""

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from cluster import PROGRAMS

XTASK = str(PROGRAMS / "xtask")


def dist(output: Path) -> Path:
    """Makes an archive; its path."""
    command = [XTASK, "dist", "--programs", str(PROGRAMS), "--output", str(output)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1760000000"}
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    (archive,) = output.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dist(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True)
    (release,) = folder.iterdir()
    return release


def test_it_contains_what_a_dry_run_lists(unpacked: Path):
    listed = subprocess.run([XTASK, "dist", "--dry-run"], check=True, capture_output=True, text=True).stdout.splitlines()
    assert listed[-1] == f"{unpacked.name}/share/man/man1/packhorse-COMMAND.1 for each command"
    # A development build has one worker, for the libtorch that it was built with.
    expected = {Path(line).relative_to(unpacked.name).as_posix() for line in listed[:-1]} - {"bin/packhorse-worker-cuda"}
    files = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    commands = {file for file in files if re.fullmatch(r"share/man/man1/packhorse-[a-z-]+\.1", file)}
    assert expected <= files
    assert files - expected <= commands
    for command in ("serve", "setup", "model-register", "backup", "lab-simulate"):
        assert f"share/man/man1/packhorse-{command}.1" in files


def test_the_programs_are_stripped_and_find_their_libraries(unpacked: Path):
    for program in ("packhorse", "packhorse-lab", "packhorse-gateway", "packhorse-agent"):
        path = unpacked / "bin" / program
        said = subprocess.run([str(path), "--version"], check=True, capture_output=True, text=True, env={}).stdout
        assert said.split()[0] == program
        sections = subprocess.run(["readelf", "-SW", str(path)], check=True, capture_output=True, text=True).stdout
        assert ".debug_info" not in sections and ".symtab" not in sections
        found = subprocess.run(["ldd", str(path)], check=True, capture_output=True, text=True).stdout
        if "libhighs" in found:
            assert f"{unpacked}/bin/../lib/libhighs.so.1" in found


def test_checksums_hold(archive: Path, unpacked: Path):
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=unpacked, check=True)
    listed = {line.split()[1] for line in (unpacked / "SHA256SUMS").read_text().splitlines()}
    files = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert listed == files - {"SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--quiet", f"{archive.name}.sha256"], cwd=archive.parent, check=True)


def test_it_can_be_made_again(archive: Path, tmp_path: Path):
    assert dist(tmp_path).read_bytes() == archive.read_bytes()
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(member.mtime, member.uid, member.gid) for member in members} == {(1760000000, 0, 0)}


def test_licences_and_materials_name_every_crate_of_the_programs(unpacked: Path):
    folder = unpacked / "share/doc/packhorse"
    materials = json.loads((folder / "packhorse.cdx.json").read_text())
    assert (materials["bomFormat"], materials["specVersion"]) == ("CycloneDX", "1.5")
    components = {component["bom-ref"]: component for component in materials["components"]}
    names = {component["name"] for component in components.values()}
    assert {"packhorse-gateway", "tokio", "hyper", "sqlx", "tch", "HiGHS"} <= names
    assert not {"proptest", "wiremock", "criterion"} & names, "only tests use these"
    for reference in materials["dependencies"]:
        assert {reference["ref"], *reference["dependsOn"]} <= set(components)
    foreign = [c for c in components.values() if c["purl"].startswith("pkg:cargo/") and not c["name"].startswith("packhorse")]
    assert all(c["hashes"][0]["content"] and c["licenses"] for c in foreign if c["name"] != "workspace-hack")
    licences = (folder / "THIRD-PARTY-LICENSES.txt").read_text()
    for component in foreign:
        if component["name"] != "workspace-hack":
            assert f"{component['name']} {component['version']} (" in licences
    assert "Permission is hereby granted" in licences


def test_manual_pages_and_completions_know_the_flags(unpacked: Path):
    share = unpacked / "share"
    assert r"\-\-model\-repository" in (share / "man/man1/packhorse-serve.1").read_text()
    assert r"\-\-lease\-ms" in (share / "man/man1/packhorse-gateway.1").read_text()
    assert r"\-\-stop\-workers\-on\-exit" in (share / "man/man1/packhorse-agent.1").read_text()
    completions = ("bash-completion/completions/packhorse", "fish/vendor_completions.d/packhorse.fish", "zsh/site-functions/_packhorse")
    for file in completions:
        assert "model-repository" in (share / file).read_text()
    assert "min-devices" in (share / "bash-completion/completions/packhorse-lab").read_text()
    for program in ("packhorse", "packhorse-lab"):
        subprocess.run(["bash", "-n", str(share / f"bash-completion/completions/{program}")], check=True)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
# The agent is root, with the rights to start and stop workers of another user.
@pytest.mark.parametrize(("service", "exposure"), [("packhorse-gateway", 20), ("packhorse-agent", 50)])
def test_units_are_valid_and_confined(unpacked: Path, tmp_path: Path, service: str, exposure: int):
    unit = (unpacked / f"lib/systemd/system/{service}.service").read_text()
    # Where the program lies here, so that everything said is about the unit.
    unit = unit.replace("/usr/local/bin/", f"{unpacked}/bin/")
    unit = "".join(line for line in unit.splitlines(keepends=True) if not line.startswith("Documentation="))
    file = tmp_path / f"{service}.service"
    file.write_text(unit)
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60)
    assert [line for line in (done.stdout + done.stderr).splitlines() if service in line] == []
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={exposure}", str(file)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
