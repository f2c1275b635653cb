"""The book: its pages with their fenced blocks, and the machine of a reader who does what they show.

The words behind a block's language say what is done with it:

    sh                 runs, in the order of the page; the page's first commands find a cluster, unless the page starts one itself
    sh,background      starts, and runs until the end of the page
    console            runs what stands behind `$`, and compares what follows: JSON by its keys, text by its words without digits
    python             runs
    json               is JSON; `schema=NAME` is a type of openapi/gateway.json that it must be
    toml               is TOML, and is planned for if it is a scenario
    rust               is included from a file that is compiled and tested
    csv                is a file for the commands that follow
    text               is there for readers only
    …,file=NAME        is written to a file, for the commands that follow
    …,no_run           is not run, since it needs what not every machine has; its commands and flags must exist
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import book_reference
from cluster import PROGRAMS, Process, free_port, processes_of, wait_until
from packhorse import export_command

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\S+)\n(.*?)^ *```$", re.M | re.S)
RUN = {"sh", "console", "python"}
CHECKED = {"json", "toml", "rust", "csv"}
# What is there for readers only: what a program prints where it is not run.
SHOWN = {"text"}
# The model that the clusters of pages serve that start none themselves.
MODEL = "resnet50"
KIND = "V100-SXM2-16GB"
# Folders of the repository that the pages name.
FOLDERS = ("scenarios", "profiles")
# The words between two commands of a shell.
SEPARATORS = {"|", "||", "&&", ";", "&"}
# How long a command may take.
LIMIT = 120


@dataclass
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    marks: dict[str, str]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_marked(self) -> bool:
        return "no_run" in self.marks

    def commands(self) -> list[tuple[str, str]]:
        """The commands of a console, each with what is shown of its output."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found and found[-1][0].endswith("\\") and not found[-1][1]:
                found[-1] = (found[-1][0] + "\n" + line, [])
            else:
                found[-1][1].append(line)
        return [(command, "\n".join(output)) for command, output in found]


def chapters() -> list[Path]:
    """The pages of the book, in its order."""
    summary = (BOOK / "SUMMARY.md").read_text()
    return [BOOK / name for name in re.findall(r"\]\(([^)]+)\)", summary)]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        language, *marks = match[2].split(",")
        body = re.sub(f"^{match[1]}", "", match[3], flags=re.M)
        named = {name: value for name, _, value in (mark.partition("=") for mark in marks)}
        found.append(Block(page, text[: match.start()].count("\n") + 1, language, named, body))
    return found


def programs_in(text: str) -> Iterator[list[str]]:
    """The words of each command of ours in a shell's text."""
    text = text.replace("\\\n", " ")
    for line in text.splitlines():
        if "packhorse" not in line:
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        ours = [bool(re.fullmatch(r"(\S*/)?packhorse(-lab|-gateway|-agent|-worker)?", word)) for word in words]
        starts = [i for i, is_ours in enumerate(ours) if is_ours and (i == 0 or words[i - 1] in SEPARATORS)]
        for start, end in zip(starts, [*starts[1:], len(words)], strict=False):
            command = [Path(words[start]).name]
            for word in words[start + 1 : end]:
                if word in SEPARATORS or word.startswith(">"):
                    break
                command.append(word)
            yield command


class Reader:
    """A machine on which Packhorse is installed: a home folder, the programs on the path, and the ports that the pages name."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.here = folder / "here"
        self.home = folder / "home"
        for made in (self.here, self.home):
            made.mkdir(parents=True)
        for name in FOLDERS:
            (self.here / name).symlink_to(ROOT / name)
        # The pages name the usual ports, which others may use on this machine.
        self.ports = {usual: str(free_port()) for usual in ("8080", "8081", "8001")}
        inference, admin, grpc = (f"127.0.0.1:{port}" for port in self.ports.values())
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "XDG_"))}
        self.environment |= {
            "HOME": str(self.home),
            "PATH": f"{PROGRAMS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PACKHORSE_URL": f"http://{inference}",
            "PACKHORSE_ADMIN_URL": f"http://{admin}",
            "PACKHORSE_LISTEN": inference,
            "PACKHORSE_ADMIN_LISTEN": admin,
            "PACKHORSE_GRPC_LISTEN": grpc,
            "PACKHORSE_GATEWAY": f"http://{admin}",
            "PACKHORSE_NODE": "laptop",
            "PACKHORSE_PROFILES": str(self.profiles()),
            "PACKHORSE_PROFILE_TIME_LIMIT_MS": "2000",
            "PACKHORSE_SYSTEM_SHARED_MEMORY": "true",
            "PYTHONPATH": str(ROOT / "python"),
        }
        self.running: list[Process] = []

    def profiles(self) -> Path:
        """The profiles of simulated devices: those of the repository, in which the second version of the model is as fast as the first."""
        text = (ROOT / "profiles/v100-thesis.csv").read_text()
        rows = [line.replace(MODEL, f"{MODEL}:2", 1) for line in text.splitlines() if line.startswith(f"{MODEL},")]
        file = self.folder / "profiles.csv"
        file.write_text(text + "\n".join(rows) + "\n")
        return file

    def on_our_ports(self, text: str) -> str:
        """The text with the ports of this machine for the usual ones."""
        return re.sub(r"(localhost|127\.0\.0\.1):(8080|8081|8001)\b", lambda match: f"{match[1]}:{self.ports[match[2]]}", text)

    def start_cluster(self) -> None:
        """Starts what pages expect that start nothing: two simulated GPUs that serve a model."""
        self.start(f"packhorse serve --devices simulated:{KIND}:2")
        spec = {
            "name": MODEL,
            "max_batch_size": 32,
            "slo_ms": 200,
            "rate_rps": 50,
            "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 8, 8]}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}],
        }
        (self.here / f"{MODEL}.json").write_text(json.dumps(spec))
        (self.here / f"{MODEL}.pt").write_bytes(b"devices that are simulated read no file")
        self.shell(f"packhorse model register {MODEL}.json --artifact {MODEL}.pt --wait")

    def start(self, command: str) -> None:
        """Starts a command that does not end, and waits until it says that it is ready."""
        log = self.folder / f"background-{len(self.running)}.log"
        process = Process(["bash", "-c", f"cd {self.here} && exec env {self.on_our_ports(command)}"], log, self.environment)
        self.running.append(process)

        def is_ready() -> bool:
            assert process.is_running(), process.said()
            return "\nready " in f"\n{process.said()}"

        wait_until(is_ready, f"{command} to be ready", limit=60)

    def shell(self, text: str) -> str:
        """Runs a text of the shell; its output."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.on_our_ports(text)],
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def run(self, block: Block) -> None:
        """Does what a block shows."""
        if "file" in block.marks:
            file = self.here / block.marks["file"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        if block.is_marked:
            return
        match block.language:
            case "sh" if "background" in block.marks:
                self.start(block.text.strip())
            case "sh":
                self.shell(block.text)
            case "console":
                for command, shown in block.commands():
                    same(shown, self.shell(command))
            case "python":
                self.shell(f"python - <<'END'\n{block.text}\nEND")
            case "toml" if "[[models]]" in block.text:
                self.shell(f"packhorse-lab plan --scenario {shlex.quote(block.marks['file'])}")

    def close(self) -> None:
        """Ends everything and asserts that nothing is left."""
        for process in self.running:
            if process.is_running():
                process.stop(60)
        wait_until(lambda: not processes_of(self.folder), "every process to end")


def same(shown: str, given: str) -> None:
    """Asserts that an output is the one that a page shows, but for its values."""
    if shown.lstrip().startswith(("{", "[")):
        assert shape(json.loads(shown)) == shape(json.loads(given)), f"the page shows\n{shown}\nand there is\n{given}"
    elif shown.strip():
        pattern = "".join(r"(?:.*\n)*?" if line.strip() == "…" else line_pattern(line) for line in shown.strip("\n").split("\n"))
        assert re.fullmatch(pattern, given.strip("\n") + "\n"), f"the page shows\n{shown}\nand there is\n{given}"


def line_pattern(line: str) -> str:
    """A line, in which words with digits are any words."""
    words = (r"\S+" if re.search(r"\d", word) else re.escape(word) for word in line.split())
    return r"[ \t]*" + r"[ \t]+".join(words) + r"[ \t]*\n"


def shape(value):
    """What JSON is made of, without its values: keys, and whether there are numbers, texts or lists."""
    match value:
        case dict():
            return {key: shape(inner) for key, inner in value.items()}
        case list():
            return [shape(value[0])] if value else []
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case _:
            return type(value).__name__


@cache
def reference() -> dict[str, str]:
    """The sections of the reference of the command line, by command, and the help of the one that is written in Python."""
    text = (BOOK / "reference/command-line.md").read_text()
    parts = re.split(r"^#{2,4} (packhorse.*)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True)) | {"packhorse export": export_command.parser().format_help()}


def check_flags(words: list[str], place: str) -> None:
    """Asserts that a command and its flags exist."""
    known = reference()
    command = words[0]
    for word in words[1:]:
        if f"{command} {word}" not in known:
            break
        command = f"{command} {word}"
    takes_more = any(name.startswith(f"{command} ") for name in known)
    given = command.count(" ") + 1
    is_word = len(words) > given and re.fullmatch("[a-z][a-z-]*", words[given])
    assert not (takes_more and is_word), f"{place}: there is no {command} {words[given]}"
    flags = {word.split("=")[0] for word in words if word.startswith("--")}
    program = command.split()[0]
    everywhere = known[program] if program in book_reference.COMMANDS else ""
    unknown = [flag for flag in flags if not re.search(rf"{flag}(?![\w-])", known[command] + everywhere) and flag not in ("--help", "--version")]
    assert not unknown, f"{place}: {command} has no {unknown}"
