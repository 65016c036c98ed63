"""Pages that hold examples, messages and declarations, against what the library does and what its sources say."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import notebook
import pytest
from harness import ROOT, run_jax, run_python
from pjrt_arena import memory
from pjrt_arena._former import Renamed
from test_docs import members, rows, text

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
#: Small arrays, so that each device needs little. A page that uses a former name fails.
ONE_DEVICE = {
    "PJRT_ARENA_DEVICES": "1",
    "PJRT_ARENA_LIMIT": "64MiB",
    "PYTHONWARNINGS": "error::DeprecationWarning:__main__",
}


def block(page: str, name: str) -> str:
    """The code of a page behind the comment `<!-- name -->`."""
    found = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)```", text(page), re.DOTALL)
    assert found, f"{page} has no block {name}"
    return found[1]


def steady(said: str) -> list[str]:
    """The lines without what differs from run to run: times, the machine, holes, what programs have not let go yet."""
    said = re.sub(r"the machine has \S+|\b[\d.]+ m?s\b|largest hole .*|by moving \S+", "", said)
    return [re.sub(r"\s+", " ", line).strip() for line in said.splitlines() if not re.match(r"\s*pending\s", line)]


def test_the_readme_is_short():
    assert len(text("README.md").splitlines()) <= 165
    why = text("README.md").partition("## Why\n")[2].partition("\n## ")[0]
    reasons = re.findall(r"^- \*\*(.*)$", why, re.MULTILINE)
    sentences = [reason.partition("** ")[2] for reason in reasons]
    assert len(sentences) == 5 and all(len(sentence.split()) <= 15 for sentence in sentences), sentences


@pytest.mark.arena
@pytest.mark.parametrize("strategy", ["preallocate", "tpu"])
def test_the_readmes_program_prints_what_it_says(strategy):
    program = block("README.md", "program")
    assert len(program.strip().splitlines()) <= 12
    said = run_jax(program, PJRT_ARENA_STRATEGY=strategy, **ONE_DEVICE).stdout.splitlines()
    shown = block("README.md", strategy).splitlines()
    if "  ..." in shown:  # Shortened: what is left out stands together.
        cut = shown.index("  ...")
        left = len(shown) - cut - 1
        assert len(said) > len(shown) - 1
        said, shown = said[:cut] + said[-left:], shown[:cut] + shown[cut + 1 :]
    assert said == shown


@pytest.mark.arena
@pytest.mark.parametrize("strategy", ["preallocate", "tpu"])
def test_the_readmes_program_goes_on(strategy, tmp_path):
    code = f"import os\nos.chdir({str(tmp_path)!r})\n" + block("README.md", "program") + block("README.md", "memory")
    said = run_jax(code, PJRT_ARENA_STRATEGY=strategy, **ONE_DEVICE).stdout
    assert f"\ncpu:0, strategy {strategy}, limit 64.00 MiB\n" in said
    assert re.search(r"^parts: \d+\.\d+ MiB in use at the start, ", said, re.MULTILINE)
    assert re.search(r"^  jit_multiply output 0 .* \+1\.75 MiB +\+7 ", said, re.MULTILINE)


def test_the_table_of_speed_has_every_program_of_the_chart():
    chart = ElementTree.fromstring(text("python_smoke/bench/chart.svg"))
    labels = [one.text or "" for one in chart.findall(".//{*}text") if one.get("text-anchor") == "end"]
    shown = dict(zip(labels[::2], labels[1::2], strict=True))
    page = text("docs/benchmarks.md")
    table = [
        [cell.strip().replace("`", "") for cell in line.strip("|").split(" | ")][:2]
        for line in page.partition("| | speed-up |")[2].partition("\n\n")[0].splitlines()[2:]
    ]
    assert len(table) == len(shown) == int(re.search(r"^All (\d+), the fastest first", page, re.MULTILINE)[1]) > 30
    assert dict(table) == shown
    ratios = [float(ratio.removesuffix("x")) for _, ratio in table]
    assert ratios == sorted(ratios, reverse=True)
    # The README has its ends.
    ends = [[cell.replace("`", "") for cell in cells] for cells in rows("README.md", "gains")]
    assert [cells[:2] for cells in ends] == table[:4]
    assert [cells[2:] for cells in ends] == table[:-5:-1]


@pytest.mark.arena
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path):
    for said, shown in zip(notebook.outputs(path), notebook.stored(path), strict=True):
        assert steady(said) == steady(shown)


@pytest.mark.arena
def test_does_it_fit_prints_what_it_says(tmp_path):
    page = "docs/tutorials/does-it-fit.md"
    parts = ["arrays", "step", "run"]
    code = "\nprint('---')\n".join([block(page, "model"), *(block(page, part) for part in parts)])
    limits = ONE_DEVICE | {"PJRT_ARENA_LIMIT": "512MiB", "PJRT_ARENA_STRATEGY": "tpu"}
    said = run_jax(code, **limits).stdout.split("---\n")[1:]
    # What is free then depends on which of the dropped arrays a program still uses.
    numbers = re.compile(r"There are \S+ free, (\S+ reserved), and \S+ reservable")
    shown = [block(page, f"{part} output") for part in parts]
    assert [numbers.sub(r"\1", part) for part in said] == [numbers.sub(r"\1", part) for part in shown]

    code = block(page, "model") + "from pjrt_arena import memory\n" + block(page, "peaks")
    said = run_jax(code, **(limits | {"PJRT_ARENA_LIMIT": "2GiB"})).stdout
    assert said == block(page, "peaks output")


@pytest.mark.arena
def test_the_file_of_the_guide_of_peaks_runs_as_it_is(tmp_path):
    page, file = "docs/guides/peaks.md", tmp_path / "test_memory.py"
    code = block(page, "test")
    plugin = "-ppjrt_arena.pytest_plugin"

    def tests(code: str, *names: str) -> subprocess.CompletedProcess[str]:
        file.write_text(code)
        how = ("-m", "pytest", "-q", "-p", "no:cacheprovider", plugin, "--rootdir", str(tmp_path), str(file), *names)
        # `configure` names the platform.
        return run_python(*how, check=False, PJRT_ARENA_DEVICES="1", JAX_PLATFORMS=None)

    run = tests(code)
    assert run.returncode == 0 and f"{code.count('def test_')} passed" in run.stdout, run.stdout
    planted = code.replace(", donate_argnums=0", "")
    run = tests(planted, "-k", "donated")
    assert run.returncode == 1 and planted != code
    said = [line.removeprefix("E").strip() for line in run.stdout.splitlines() if line.startswith("E ")]
    lines = [line.removeprefix("AssertionError: ") for line in said]
    shown = [line.strip() for line in block(page, "test output").splitlines()]
    assert lines[: len(shown)] == shown


def literals(code: str) -> list[str]:
    """The string literals of a piece of Rust, without the breaks within them."""
    found = re.findall(r'"((?:[^"\\]|\\.|\\\n)*)"', code, re.DOTALL)
    return [re.sub(r"\\\n\s*", "", literal).replace('\\"', '"') for literal in found]


def call_at(code: str, start: int) -> str:
    """The arguments of the call whose bracket opens at `start`."""
    depth, quoted = 0, re.compile(r'"(?:[^"\\]|\\.|\\\n)*"', re.DOTALL)
    at = start
    while True:
        if code[at] == '"' and (literal := quoted.match(code, at)):
            at = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return code[start:at]
        at += 1


def normal(message: str) -> str:
    """A message with `...` for what differs, on one line."""
    message = re.sub(r"[\w.]*\{[^{}]*\}[\w.]*", "...", message.replace("`", "").replace("\\n", " "))
    return re.sub(r"\s+", " ", re.sub(r"[\w.]*\.{3}(?:\.{3})*[\w.]*", "...", message)).strip()


#: What only callers of the C API can cause, or what becomes a part of another message.
NOT_FOR_USERS = (
    "src/api/async_transfer.rs", "src/api/buffer/", "src/api/entry.rs", "src/api/executable.rs", "src/api/execute.rs",
    "src/api/host.rs", "src/api/partitioners.rs", "src/api/profiler.rs", "src/api/transfer_manager.rs",
    "src/device/cuda/backing.rs", "src/engine/extensions.rs", "src/engine/ffi.rs", "src/engine/imports.rs",
    "src/handlers/", "src/memory/arena/", "src/runtime/executable/serialized.rs", "src/runtime/execute/call.rs",
    "src/runtime/execute/nested.rs", "src/runtime/transfer/",
)  # fmt: skip
#: Parts of other messages.
PARTS = {"and", "the default of PJRT_ARENA_ENGINE", "the rest of the compilation is not wanted"}


def reasons_of_no_effect(code: str) -> list[str]:
    """What is said of settings that change nothing: the reason alone stands in the code, or in what it calls for it."""
    said = []
    for call in re.finditer(r"(?<!fn )\bno_effect\(", code):
        given = call_at(code, call.end() - 1)
        name = re.escape(given.rpartition(",")[2].strip())
        named = re.findall(rf"let {name} = (.*?);", code[: call.start()], re.DOTALL)
        said += literals(given) or literals("".join(named[-1:]))
    for function in re.findall(r"fn without_\w+\(&self\) -> Option<&'static str> \{(.*?)\n    \}", code, re.DOTALL):
        said += literals(function)
    return [normal(f"... has no effect: {why}") for why in said]


def messages_of_the_sources() -> dict[str, str]:
    """Errors and warnings of the library, and the file of each; without those that say that a bug was found."""
    errors = "new|invalid_argument|failed_precondition|not_found|unimplemented"
    kinds = rf"log::warn!|warnings\.push|notes\.push|Error::(?:{errors})"
    found = {}
    for path in sorted((ROOT / "src").rglob("*.rs")):
        name = path.relative_to(ROOT).as_posix()
        if "tests" in path.parts or path.name in {"tests.rs", "fake.rs", "testing.rs"}:
            continue
        code = path.read_text().partition("#[cfg(test)]\nmod tests {")[0]
        found |= dict.fromkeys(reasons_of_no_effect(code), name)
        for call in re.finditer(rf"({kinds})\(", code):
            if call[1] != "log::warn!" and name.startswith(NOT_FOR_USERS):
                continue
            for literal in literals(call_at(code, call.end() - 1)):
                if re.search(r"[a-z]{3,} ", literal) and "this is a bug" not in literal:
                    found[normal(literal)] = name
    return {message: name for message, name in found.items() if message not in PARTS}


def test_settings_with_and_without_effect_are_among_the_messages():
    there = messages_of_the_sources()
    assert "... has no effect: the strategy platform has no region in which buffers could be moved" in there
    assert "... has no effect: only the strategy tpu counts tiles, and this is ..." in there
    assert "... has no effect: it means something with spill only, which is off" in there
    assert any(message.startswith("the limit of device ... is ... (...), which the first member") for message in there)


def of_python(argument: ast.expr) -> str | None:
    """The text that an argument is, with `...` for what differs; None where it is no text."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return re.sub(r"%[sdr]", "...", argument.value)
    if isinstance(argument, ast.JoinedStr):
        return "".join(of_python(part) or "..." for part in argument.values)
    return None


def messages_of_the_package() -> dict[str, str]:
    """Errors and warnings of the Python package, and the file of each."""
    found = {}
    for path in sorted((ROOT / "python").rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        # A text that has a name first: `text = f"..."`.
        named: dict[str, list[str]] = {}
        for node in nodes:
            if isinstance(node, ast.Assign) and (said := of_python(node.value)):
                named.setdefault(ast.unparse(node.targets[0]), []).append(said)
        for node in nodes:
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func).rpartition(".")[2]
            # Python's own words about a name that is not there help nobody.
            if (isinstance(node, ast.Raise) and name != "AttributeError") or name in {"warn", "warning", "_warning"}:
                texts = [
                    said
                    for argument in call.args
                    for said in [of_python(argument), *named.get(ast.unparse(argument), [])]
                    if said and re.search(r"[a-z]{2,} ", said)
                ]
                found |= {normal(said): path.name for said in texts}
    return {message: name for message, name in found.items() if message not in PARTS}


def beginning(message: str) -> str:
    """The first words of a message, which stay when it says more."""
    return re.sub(r"( \.\.\.)+$", "", " ".join(message.split()[:5]))


def messages_of_the_page() -> list[str]:
    """What troubleshooting explains: each item of its lists begins with one message, or more of them."""
    page = re.sub(r"\n +(?![-* ])", " ", text("docs/troubleshooting.md"))
    items = re.findall(r"^ *- (`[^`]+`(?:, `[^`]+`)*)", page, re.MULTILINE)
    return [normal(message) for item in items for message in re.findall(r"`([^`]+)`", item)]


def test_every_message_is_on_the_page_of_troubleshooting():
    there, of_the_package = messages_of_the_sources(), messages_of_the_package()
    assert len(there) > 80 and len(of_the_package) > 50
    told = messages_of_the_page()
    assert len(told) == len(set(told)), [message for message in told if told.count(message) > 1]
    missing = {message: name for message, name in there.items() if message not in told}
    missing |= {
        message: name
        for message, name in of_the_package.items()
        if not any(entry.startswith(beginning(message)) for entry in told)
    }
    assert not missing, "these messages have no entry on the page"
    # What the test does not find by itself, because it is put together of parts: each part is in some source.
    sources = [*(ROOT / "src").rglob("*.rs"), *(ROOT / "python").rglob("*.py")]
    everything = re.sub(r"\\\n\s*|\"\s*\n\s*f?\"|`", "", "\n".join(path.read_text() for path in sources))
    known = tuple(beginning(message) for message in of_the_package)
    for message in (message for message in told if message not in there and not message.startswith(known)):
        for part in re.split(r"\.\.\.", message):
            assert part.strip(" .,;:()'") in everything, f"{message}: no source says {part!r}"


#: Types of arguments of exported functions, in C.
IN_C = {
    "CText<'_>": "const char *", "*const c_char": "const char *", "usize": "size_t", "u32": "uint32_t",
    "u64": "uint64_t", "c_int": "int", "std::ffi::c_int": "int", "*const i64": "const int64_t *",
    "*const Table": "const Table *", "*mut c_void": "void *",
}  # fmt: skip


def in_c(rust: str) -> str:
    """A type in C, with the space or star before a name."""
    rust = re.sub(r"^Option<(.*)>$", r"\1", rust)
    if rust in IN_C:
        return IN_C[rust] if IN_C[rust].endswith(("*", " ")) else IN_C[rust] + " "
    if rust.startswith("&mut *mut sys::"):
        return rust.removeprefix("&mut *mut sys::") + " **"
    kind, _, name = rust.partition(" sys::")
    return {"*const": f"const {name} *", "*mut": f"{name} *"}.get(kind, f"{kind} ")


#: An exported function: `extern` or nothing for one that returns text, its name, arguments and result.
EXPORTED = re.compile(
    r"pub (?:unsafe )?(extern \"C\" )?fn (pjrt_arena_\w+)\(([^)]*)\)(?: with \w+)?(?: -> ([^{]+?))? \{"
)


def declarations() -> set[str]:
    """The exported functions of the sources, as C declares them."""
    found = set()
    for path in (ROOT / "src").rglob("*.rs"):
        code = path.read_text()
        for extern, name, arguments, returns in EXPORTED.findall(code):
            is_text = not extern
            given = [argument.strip().split(": ", 1) for argument in arguments.split(",") if argument.strip()]
            parameters = [in_c(kind) + name for name, kind in given]
            if is_text:
                parameters += ["char *buffer", "size_t capacity"]
            result = "size_t " if is_text else in_c(returns.strip()) if returns else "void "
            found.add(f"{result}{name}({', '.join(parameters) or 'void'});")
    return found


def test_the_c_functions_are_declared_as_they_are():
    page = text("docs/reference/c.md")
    code = "\n".join(re.findall(r"```c\n(.*?)```", page.partition("## An example")[0], re.DOTALL))
    told = {re.sub(r"\s+", " ", declaration) + ";" for declaration in re.findall(r"^(\w[^;]*);", code, re.MULTILINE)}
    assert len(told) > 20 and told == declarations()
    explained = {name for cells in rows("docs/reference/c.md", "function") for name in re.findall(r"`(\w+)`", cells[0])}
    programs = page.partition("## For programs")[2].partition("## For the Python package")[0]
    assert explained == set(re.findall(r"(pjrt_arena_\w+)\(", programs))


@pytest.mark.arena
def test_the_schema_names_the_keys_of_a_snapshot(tmp_path):
    path = tmp_path / "x.json"
    code = f"""
        import jax.numpy as jnp
        from pjrt_arena import memory
        kept = [jnp.ones(1 << 20) for _ in range(4)]
        try:
            jnp.ones(1 << 30)
        except Exception:
            pass
        memory.snapshot({str(path)!r})
    """
    run_jax(code, **ONE_DEVICE)
    root = json.loads(path.read_text())
    device = root["devices"][0]
    page = "docs/reference/snapshot.md"

    def told(section: str) -> set[str]:
        table = text(page).partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        first = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
        return {name for cell in first for name in re.findall(r"`(\w+)`", cell)}

    assert told("The whole") == root.keys()
    assert told("`origins`") == root["origins"].keys()
    assert told("A device") == device.keys()
    assert told("`blocks`") == device["blocks"].keys()
    assert told("`events`") - {"kind"} == device["events"].keys() - {"kind"}
    failures = re.findall(r"`(\w+)`", text(page).partition("## `failures`")[2])
    assert set(failures) == device["failures"][0].keys()
    statistics = text(page).partition("\n`stats`: ")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", statistics)) == device["stats"].keys()


def test_settings_in_blocks_reach_the_program():
    """A line `NAME=value` by itself sets a variable of the shell alone."""
    for page in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]:
        for code in re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            alone = re.findall(r"^(?:PJRT_ARENA|JAX)_\w+=\S+\s*(?:#.*)?$", code, re.MULTILINE)
            assert not alone, f"{page.name}: export it, or put the program behind it: {alone}"


def test_the_functions_that_pages_call_are_there():
    called = {
        name
        for path in [*ROOT.glob("*.md"), *docs()]
        for name in re.findall(r"(?<![\w/.])memory\.([a-z_]+)\((?!\) is now)", path.read_text())
        # Of an example in Rust.
        if name != "pending"
    }
    assert len(called) > 10 and called <= set(memory.__all__), called - set(memory.__all__)


def python_of(page: Path) -> str:
    """All code in Python of a page or a notebook."""
    if page.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in notebook.code_cells(json.loads(page.read_text())))
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


def test_pages_use_no_former_names_of_fields():
    kinds = {name: kind for name in memory.__all__ if isinstance(kind := getattr(memory, name), type)}
    present = set().union(*(members(kind) for kind in kinds.values()))
    former = set().union(*(kind.FORMER for kind in kinds.values() if issubclass(kind, Renamed))) - present
    assert {"buffers_moved", "peak", "padding"} <= former
    shown = 0
    for page in [*ROOT.glob("*.md"), *docs()]:
        code = python_of(page)
        used = set(re.findall(r"\b[a-z]\w*(?:\(.*?\)|\[\w+\])*\.([a-z_]+)\b(?!\()", code))
        # What a comment says that a function gives: `[Compaction(device='cpu:0', num_moves=..., ...)]`.
        for name, given in re.findall(r"# .*?\b([A-Z]\w+)\((\w+=.*?)\)", code):
            fields = set(re.findall(r"\b(\w+)=", given))
            assert fields <= members(kinds[name]), f"{page.name}: {name} has no {fields - members(kinds[name])}"
            shown += 1
        assert not used & former, f"{page.name}: former names {used & former}"
        # They were dicts once.
        dicts = re.findall(r"memory\.\w+\(\)(?:\[\w+\])?\[\"\w+\"\]", page.read_text())
        assert not dicts, f"{page.name}: no dicts: {dicts}"
    assert shown >= 2


def test_the_site_has_every_page():
    listed = set(re.findall(r": ([\w/-]+\.md)$", text("mkdocs.yml"), re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for path in docs()}
    assert listed - {"index.md", "changelog.md", "security.md"} == pages


def docs() -> list[Path]:
    """The pages of docs/, notebooks too."""
    return [*sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS]
