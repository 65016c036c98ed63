"""What MkDocs does not do by itself for our site: pages and pictures from outside of docs/, and the notebook.

One text serves GitHub and the site, so links are those that GitHub follows, and are turned here.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: Pages of the site that lie elsewhere in the repository, by their place on the site.
PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
#: Files that pages show or offer, by their place on the site.
FILES = {
    "assets/viewer.png": "src/report/viewer/viewer.png",
    "assets/chart.svg": "python_smoke/bench/chart.svg",
    "assets/site.css": "python_smoke/site.css",
}
#: Where a link to a file of the repository leads on the site.
PLACES = {source: place for place, source in (PAGES | FILES).items()} | {"CONTRIBUTING.md": "docs/contributing.md"}


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages and files of the lists above, and a page for each notebook."""
    file = importlib.import_module("mkdocs.structure.files").File
    for place, source in PAGES.items():
        files.append(file.generated(config, place, content=(ROOT / source).read_text()))
    for place, source in FILES.items():
        files.append(file.generated(config, place, abs_src_path=str(ROOT / source)))
    for notebook in sorted(Path(config["docs_dir"]).rglob("*.ipynb")):
        place = notebook.relative_to(config["docs_dir"]).with_suffix(".md").as_posix()
        files.append(file.generated(config, place, content=page_of(notebook)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turns the links of a page from the repository's places to those on the site."""
    place = page.file.src_uri
    source = PAGES.get(place, f"docs/{place}")
    return re.sub(r"(?<=\]\()[^)\s#]+(?=[)#])", lambda link: turned(link[0], source, place), markdown)


def turned(link: str, source: str, place: str) -> str:
    """A link of the file `source` of the repository, as the page at `place` of the site has it."""
    if "://" in link or link.startswith("mailto:"):
        return link
    target = normpath(PurePosixPath(source).parent / link)
    target = PLACES.get(target, target)
    target = target.removeprefix("docs/")
    # A page is made of a notebook; its own page offers the notebook itself.
    if target.endswith(".ipynb") and not place.startswith(target.removesuffix(".ipynb")):
        target = target.removesuffix(".ipynb") + ".md"
    return relpath(target, PurePosixPath(place).parent)


def page_of(notebook: Path) -> str:
    """A notebook as Markdown: texts, code, and what the code prints."""
    parts = []
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        printed = ("".join(output["text"]).rstrip("\n") for output in cell.get("outputs", ()))
        parts.extend(f"```text\n{output}\n```" for output in printed)
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n[The notebook itself]({notebook.name}), which a test runs.\n{rest}\n"


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Lets long names in tables go on in a new line behind an underscore, so that tables fit the page."""
    return re.sub(r"<td.*?</td>", breakable, html, flags=re.DOTALL)


def breakable(cell: re.Match[str]) -> str:
    """The cell, with places for a new line in names of 24 characters and more."""
    return re.sub(r"<code>[^<\s]{24,}</code>", lambda name: name[0].replace("_", "_<wbr>"), cell[0])


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuses a page that fetches something from the network when it is read."""
    if fetched := re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\"\s>]+)", output):
        raise importlib.import_module("mkdocs.exceptions").PluginError(f"{page.file.src_uri} fetches {fetched}")
    return output
