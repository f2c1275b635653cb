"""The book does what it says: its links lead somewhere, its commands run, its JSON is what the API takes, and its reference is current."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import book
import book_reference
import jsonschema_rs
import pytest
from book import BOOK, CHECKED, ROOT, RUN, SHOWN, Block, Reader

DOCUMENT = json.loads((ROOT / "openapi/gateway.json").read_text())
PAGES = [*book.chapters(), ROOT / "README.md"]
# Those on the programs of a release: not what programs write, nor the page of `gpu-check`, which has flags of its own.
REPORTS = [BOOK / "reference", BOOK / "experiments", BOOK / "benchmarks"]
CHAPTERS = [page for page in PAGES if page.parent not in REPORTS and page.name != "gpu-check.md"]
# Files of the repository beside the book, with links of their own.
OTHERS = ["*.md", ".github/*.md", "docker/*.md", "deploy/*.md", "examples/*.md", "scenarios/*.md", "scenarios/*/*.md", "tests/*.md"]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        reader.close()


def runs(page: Path) -> list[Block]:
    """The blocks that are run or written to files, in the order of the page."""
    found = book.blocks(page)
    return found if any(block.language in RUN and not block.is_marked for block in found) else []


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=name)
def test_the_commands_of_a_page_succeed(page: Path, reader: Reader):
    found = runs(page)
    if not any("background" in block.marks for block in found) and any("packhorse" in block.text for block in found):
        reader.start_cluster()
    for block in found:
        try:
            reader.run(block)
        except AssertionError as e:
            raise AssertionError(f"{block.place}: {e}") from e


def test_every_block_is_run_checked_or_marked(capsys: pytest.CaptureFixture):
    counts = Counter()
    for page in PAGES:
        for block in book.blocks(page) if page.parent != BOOK / "reference" else []:
            assert block.language in RUN | CHECKED | SHOWN or block.is_marked, f"{block.place}: {block.language} needs the mark no_run"
            how = "marked no_run" if block.is_marked else "run" if block.language in RUN else "checked"
            counts["shown" if block.language in SHOWN else how] += 1
    with capsys.disabled():
        print(f"\nblocks of the book: {dict(counts)}")


def test_what_differs_from_a_page_is_noticed():
    book.same('{"id": "a1", "rate": 2}', '{"id": "b2", "rate": 3.5}')
    book.same("laptop  ready  (seen 0.2 s ago)\n…\nend", "laptop ready (seen 11 s ago)\none\ntwo\nend\n")
    for shown, given in [('{"id": "a1"}', '{"name": "a1"}'), ("[1]", '["1"]'), ("ready 1", "lost 1"), ("one", "one\ntwo")]:
        with pytest.raises(AssertionError, match="the page shows"):
            book.same(shown, given)
    for command in ("packhorse model registr x.json", "packhorse model register --slo 5", "packhorse-agent --gateways x"):
        with pytest.raises(AssertionError, match="there is no|has no"):
            book.check_flags(command.split(), "here")


def test_every_command_and_flag_exists():
    for page in PAGES:
        for block in book.blocks(page):
            if block.language in ("sh", "console"):
                for words in book.programs_in(block.text):
                    book.check_flags(words, block.place)


def spans(page: Path) -> list[str]:
    """The text in backquotes outside of blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", book.FENCE.sub("", page.read_text()))


def test_what_prose_names_exists():
    flags = set(re.findall(r"--[a-z][\w-]+", "".join(book.reference().values())))
    routes = {(method.upper(), re.sub(r"\{\w+\}", "", path)) for path, methods in DOCUMENT["paths"].items() for method in methods}
    code = "".join(file.read_text() for file in (ROOT / "gateway/src").rglob("*.rs"))
    checked = Counter()
    for page in CHAPTERS:
        for span in spans(page):
            if flag := re.match(r"--[a-z][\w-]+$|--[a-z][\w-]+(?=[ =])", span):
                assert flag[0] in flags, f"{name(page)}: no program has {flag[0]}"
                checked["flags"] += 1
            elif route := re.match(r"(GET|POST|PUT|PATCH|DELETE) (/v[12][^?…]*)", span):
                path = re.sub(r"\b(NAME|sha256:…)|\{\w+\}", "", route[2])
                assert (route[1], path) in routes, f"{name(page)}: there is no {span}"
                checked["routes"] += 1
            elif metric := re.match(r"(packhorse|nv)_[a-z_]+", span):
                assert metric[0] in code or re.sub("_(bucket|sum|count|total)$", "", metric[0]) in code, f"{name(page)}: no metric {metric[0]}"
                checked["metrics"] += 1
            elif span.startswith("packhorse") and "…" not in span:
                for words in book.programs_in(span):
                    book.check_flags(words, name(page))
                    checked["commands"] += 1
    assert all(checked[kind] > 10 for kind in ("flags", "metrics", "commands")) and checked["routes"] > 3, checked


def test_json_is_what_the_api_takes():
    checked = 0
    for page in PAGES:
        for block in book.blocks(page):
            if block.language == "toml":
                tomllib.loads(block.text)
            if block.language != "json":
                continue
            value = json.loads(block.text)
            assert {"schema", "file"} & block.marks.keys(), f"{block.place}: which schema of openapi/gateway.json is it?"
            if "schema" in block.marks:
                reference = {"$ref": f"#/components/schemas/{block.marks['schema']}", "components": DOCUMENT["components"]}
                jsonschema_rs.validate(reference, value)
                checked += 1
    assert checked > 5


def test_rust_is_included_from_code_that_is_tested():
    for page in PAGES:
        for block in book.blocks(page):
            if block.language == "rust" and not block.is_marked:
                assert re.fullmatch(r"\{\{#include \S+\}\}\n", block.text), block.place


class Anchors(HTMLParser):
    """The ids and the links of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for key, value in attributes:
            if key == "id" and value:
                self.ids.add(value)
            if key in ("href", "src") and value:
                self.links.append(value)


def test_every_link_and_anchor_of_the_book_resolves():
    output = ROOT / "target/book"
    mdbook = Path(sys.executable).parent / "mdbook"
    done = subprocess.run([str(mdbook), "build", str(BOOK)], capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "WARN" not in said and "ERROR" not in said, said
    pages = {page: Anchors(page.read_text()) for page in output.rglob("*.html")}
    assert len(pages) >= len(book.chapters())
    broken = []
    for page, anchors in pages.items():
        # What is on every page, such as styles, is mdBook's own; print.html has the links of all pages with its own anchors.
        if page.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in anchors.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            if not target.is_relative_to(output) or not target.exists():
                broken.append(f"{page.relative_to(output)}: {link}")
            elif url.fragment and unquote(url.fragment) not in pages[target].ids:
                broken.append(f"{page.relative_to(output)}: {link} has no such heading")
    assert not broken, "\n".join(broken)


def headings(file: Path) -> set[str]:
    """The anchors of a file of Markdown, as the sites that show it make them."""
    lines = re.sub(r"^ *```.*?^ *```$", "", file.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", lines, re.M)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in plain}


def test_every_link_of_the_other_pages_resolves():
    for file in sorted({file for pattern in OTHERS for file in ROOT.glob(pattern)}):
        for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
            url = urlsplit(link)
            if url.scheme:
                continue
            target = (file.parent / url.path).resolve() if url.path else file
            assert target.exists(), f"{name(file)}: {link}"
            if url.fragment and target.suffix == ".md":
                assert url.fragment in headings(target), f"{name(file)}: {link} has no such heading"


@pytest.mark.parametrize(("page", "made"), [("command-line.md", book_reference.command_line), ("api.md", lambda: book_reference.api(DOCUMENT))])
def test_the_reference_is_current(page: str, made):
    file = BOOK / "reference" / page
    text = made()
    if os.environ.get("PACKHORSE_BLESS"):
        file.write_text(text)
    assert file.read_text() == text, "`cargo xtask docs --bless` writes it anew"


def test_every_alert_has_its_section_in_the_playbook():
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    playbook = (BOOK / "operations/incidents.md").read_text()
    assert alerts == set(re.findall(r"^### (Packhorse\w+)$", playbook, re.M))


def policies() -> set[str]:
    """Returns the names in the table of the policies."""
    source = (ROOT / "crates/placement/src/policies.rs").read_text()
    table = source.split("const DEFAULT_POLICY")[0]
    modules = re.findall(r"name: (\w+)::(\w+)(?:\.name)?,", table)
    return {module.replace("_", "-") if constant == "NAME" else constant.lower().replace("_", "-") for module, constant in modules}


def disciplines() -> set[str]:
    """Returns the names of the disciplines, those of the simulator included."""
    source = (ROOT / "crates/cluster/src/discipline.rs").read_text()
    names = source.split("const fn as_str")[1].split("\n    }\n")[0]
    return set(re.findall(r'Self::\w+ => "([a-z-]+)"', names))


def test_the_policy_guide_and_its_policies_are_the_same():
    guide = (BOOK / "policies.md").read_text()
    assert policies() == set(re.findall(r"^\| \[?`([a-z-]+)`", guide.split("## The policies")[1].split("\n## ")[0], re.M))


def test_the_benchmarks_have_every_policy_and_discipline():
    placement = (BOOK / "benchmarks/placement.md").read_text()
    thesis, scale = placement.split("\n## ")[1:3]
    of_table = lambda section: set(re.findall(r"^\| `([a-z-]+)` \|", section, re.M))
    assert of_table(thesis) == policies(), "`cargo xtask bench placement` writes the page anew"
    # Without coefficients of the models iGniter makes no plan.
    assert of_table(scale) == policies() - {"igniter"}
    engine = (BOOK / "benchmarks/engine.md").read_text()
    section = lambda title: engine.split(f"\n## {title}\n")[1].split("\n## ")[0]
    decided = lambda title: set(re.findall(r"^\| ([a-z-]+) \| \d+ \|", section(title), re.M))
    assert decided("The group servers") == disciplines(), "`cargo xtask bench engine` writes the page anew"
    assert {"flex", "flex-np", "clockwork"} == disciplines() - decided("The engine")


def test_the_numbers_of_the_policy_guide_are_those_of_the_experiment():
    def tables(text: str) -> list[list[dict[str, str]]]:
        found = re.findall(r"(?:^\|.*\n)+", text, re.M)
        cells = [[[cell.strip(" *`") for cell in re.split(r"(?<!\\)\|", line.strip("|\n"))] for line in table.splitlines()] for table in found]
        return [[dict(zip(table[0], row, strict=True)) for row in table[2:]] for table in cells]

    shown = tables((BOOK / "policies.md").read_text())[0]
    # The first table with policies is of the calibrated world.
    measured = next(table for table in tables((BOOK / "experiments/published.md").read_text()) if "Azure 2019" in table[0])
    measured = {row.pop(""): row for row in measured}
    assert len(shown) > 4
    for row in shown:
        policy = row.pop("")
        assert row.items() <= measured[f"{policy} + deadline"].items(), policy
