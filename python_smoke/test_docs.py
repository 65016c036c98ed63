"""The pages held against the project: links, settings, commands, statistics, and the example that they show."""

from __future__ import annotations

import dataclasses
import json
import re

import pjrt_arena
import pytest
import tiers
from harness import ROOT, run_jax, run_python
from pjrt_arena import cli, memory

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.ipynb"))]


def text(page: str) -> str:
    return (ROOT / page).read_text()


def anchors(page) -> set[str]:
    """What a heading is linked by, as GitHub makes it of its words."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of the table whose heading begins with this cell."""
    lines = iter(text(page).splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            break
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return table[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{page.name}: {link} is not there"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}: allowed are {sorted(anchors(target))}"


@pytest.mark.arena
def test_the_table_of_settings_has_all_of_them_and_their_defaults():
    doctor = run_python("-m", "pjrt_arena", "doctor", check=False, PJRT_ARENA_ENGINE=None).stdout
    known = dict(re.findall(r"^([a-z_]+) {2,}(\S.*?) {2,}default ", doctor, re.MULTILINE))
    assert len(known) > 15, known
    # A default that the page says in more than one word depends on the strategy.
    told = {cells[0].strip("`"): cells[2] for cells in rows("docs/settings.md", "setting")}
    assert told.keys() == known.keys()
    plain = {name: said.strip("`") for name, said in told.items() if re.fullmatch(r"`[^`]+`", said)}
    units = {"headroom": "512.00MiB", "pinned_limit": "64GiB or less"}
    assert {name: units.get(name, value) for name, value in plain.items()} == {name: known[name] for name in plain}
    short = {cells[0].strip("`"): cells[2] for cells in rows("README.md", "setting")}
    assert short == {name: told[name] for name in short}


def test_every_slow_test_is_there(request):
    """A test that was renamed would be slow no more, and nobody would see it."""
    names = request.config.stash[tiers.COLLECTED]
    if {name.partition("::")[0] for name in names} != {path.name for path in ROOT.glob("python_smoke/test_*.py")}:
        pytest.skip("only some of the files were collected")
    assert tiers.stale(names) == []


def test_every_command_is_listed():
    documented = re.findall(r"^([a-z-]+):.*## ", text("Makefile"), re.MULTILINE)
    listed = re.findall(r"^make ([a-z-]+) ", text("docs/testing.md"), re.MULTILINE)
    assert sorted(listed) == sorted({*documented} - {"help"})


@pytest.mark.arena
def test_every_field_of_the_statistics_is_explained():
    run = run_jax("import jax, json\nprint(json.dumps(sorted(jax.devices('arena')[0].memory_stats())))")
    explained = re.findall(r"`([a-z_]+)`", " ".join(cells[0] for cells in rows("docs/reports.md", "field")))
    assert sorted(explained) == json.loads(run.stdout.splitlines()[-1])


@pytest.mark.arena
def test_the_example_prints_what_the_page_shows(tmp_path):
    page = text("docs/reports.md")
    code = re.search(r"```python\n(import jax, jax\.numpy.*?)```", page, re.DOTALL)
    shown = re.search(r"With `PJRT_ARENA_LIMIT=64MiB` this prints:\n\n```\n(.*?)```", page, re.DOTALL)
    assert code and shown
    run = run_jax(f"import os\nos.chdir({str(tmp_path)!r})\n{code[1]}", PJRT_ARENA_LIMIT="64MiB")
    changing = r"the machine has \S+|[\d.]+ m?s$"
    assert [re.sub(changing, "", line).rstrip() for line in run.stdout.strip().splitlines()] == [
        re.sub(changing, "", line).rstrip() for line in shown[1].strip().splitlines()
    ]
    assert (tmp_path / "oom.html").is_file()


def names(cell: str) -> set[str]:
    """The names in a cell of a table, without what stands in parentheses behind them."""
    return set(re.findall(r"`(\w+)(?:\([^`]*\))?`", cell))


def members(kind: type) -> set[str]:
    """What a class offers: fields, properties and methods."""
    own = {name for name, value in vars(kind).items() if isinstance(value, property) or callable(value)}
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return {name for name in own | fields if not name.startswith("_")}


def test_the_page_of_python_has_every_name():
    page = "docs/python.md"
    top = set().union(*(names(cells[0]) for cells in rows(page, "name")))
    assert top | {"__version__"} == set(pjrt_arena.__all__)
    public = {name: getattr(memory, name) for name in memory.__all__}
    classes = {name for name, value in public.items() if isinstance(value, type) and not issubclass(value, Exception)}
    functions = set().union(*(names(cells[0]) for cells in rows(page, "function")))
    assert functions == {name for name, value in public.items() if not isinstance(value, type)}
    given = set().union(*(names(cells[2]) for cells in rows(page, "function")))
    assert given - {"str"} <= classes

    fields = rows(page, "field")
    told = {
        kind: set().union(*(names(cells[0]) for cells in fields if cells[2] in (kind, "both")))
        for kind in ("stats", "summary")
    }
    assert told == {
        "stats": members(memory.DeviceStats),
        "summary": members(memory.DeviceSummary),
    }
    listed = {names(cells[0]).pop(): names(cells[1]) for cells in rows(page, "class")}
    assert listed.keys() | {"DeviceStats", "DeviceSummary"} == classes
    # What a track keeps of itself is no property.
    listed["Track"] -= {"name"}
    listed["OomHandler"] -= {"callback"}
    assert listed == {name: members(public[name]) for name in listed}


def test_the_page_of_the_command_has_every_part_of_it():
    page, parser = "docs/reference/command.md", cli._parser()
    listed = [re.match(r"`pjrt-arena (\w+)", cells[0])[1] for cells in rows(page, "command")]
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))
    assert listed == list(commands.choices)
    options = {
        (option, name)
        for name, one in {"pjrt-arena": parser, **commands.choices}.items()
        for action in one._actions
        for option in action.option_strings
        if option not in {"-h", "--help"}
    }
    told = {(cells[0].strip("`").split()[0], cells[1].strip("`")) for cells in rows(page, "option")}
    assert told == options
    assert {cells[0] for cells in rows(page, "exit code")} == {"0", "1", "2", str(cli.INTERRUPTED)}
    for name in re.findall(r"`(pjrt_arena_\w+)`", text("docs/python.md") + text("docs/reports.md")):
        assert name in sources(), f"the library has no {name}"


@pytest.mark.arena
def test_the_page_of_the_command_has_every_key_of_the_doctors_json():
    told = json.loads(run_python("-m", "pjrt_arena", "doctor", "--json").stdout)
    for heading, keys in (("key", told.keys()), ("key of a setting", told["settings"][0].keys())):
        cells = " ".join(cells[0] for cells in rows("docs/reference/command.md", heading))
        assert set(re.findall(r"`(\w+)`", cells)) == keys


def sources() -> str:
    """The code and the tests, in which comments refer to pages."""
    files = [path for folder in ("src", "plugin_tests") for path in (ROOT / folder).rglob("*.rs")]
    return "\n".join(path.read_text() for path in files if "target" not in path.relative_to(ROOT).parts)


def test_every_engine_behaviour_that_is_referred_to_has_a_section():
    code = sources()
    # Comments wrap, and one may name several: "engine behaviour T3, T4".
    lists = re.findall(r"engine behaviours?(?:\s|//[/!]?)+(T\d+(?:(?:,|\s|//[/!]?|and)+T\d+)*)", code)
    named = {int(number) for numbers in lists for number in re.findall(r"T(\d+)", numbers)}
    shown = {int(number) for number in re.findall(r"\bfn (?:c\d+_)*t(\d+)_\w+", code)}
    page = text("docs/engine-behaviour.md")
    there = [int(number) for number in re.findall(r"^### T(\d+): ", page, re.MULTILINE)]
    assert named and shown and there == sorted(set(there)), "in order, each once"
    assert named | shown <= set(there), f"no section: {sorted((named | shown) - set(there))}"
    assert not re.search(r"\btraps? T\d", code), "they are called engine behaviour"


def test_the_tests_that_pages_name_are_there():
    page = text("docs/engine-behaviour.md")
    code = sources() + "\n".join(path.read_text() for path in (ROOT / "python_smoke").glob("*.py"))
    there = set(re.findall(r"\b(?:fn|def) (\w+)\(", code))
    told = {
        name
        for line in re.findall(r"^- Tests: (.*?)\.$", page, re.MULTILINE | re.DOTALL)
        for name in line.split("`")[1::2]
    }
    assert len(told) > 50 and told <= there, sorted(told - there)


@pytest.mark.parametrize("page", ["docs/contributing.md", "docs/glossary.md", "docs/engine-behaviour.md"])
def test_the_files_that_pages_name_are_there(page):
    folders = "src|pjrt_c_api|plugin_tests|python|python_smoke|docs"
    named = set(re.findall(rf"`((?:{folders})/[\w./-]*)`", text(page)))
    assert len(named) > 20 and not (missing := [path for path in named if not (ROOT / path).exists()]), missing
