"""How `make site` reads the package for the pages of reference/python: fields of classes, with their comments."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Fields(griffe.Extension):  # type: ignore[misc]  # its types are not installed here
    """Lists the fields of each class in its docstring: those of a data class have a comment ``#:`` in the source.

    Fields that follow each other without a blank line share a comment. Users make no such objects, so none is shown
    with what it would be made of.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Changes all classes of the package."""
        for module in (pkg, *pkg.modules.values()):
            for kind in module.classes.values():
                if not kind.is_alias:
                    _list_fields(kind)


def _list_fields(kind: Any) -> None:
    fields = [one for name, one in kind.attributes.items() if not one.is_alias and one.is_public and name != "FORMER"]
    if "dataclass" in kind.labels:
        kind.members.pop("__init__", None)
    if not fields or kind.docstring is None:
        return
    said = []
    for field in fields:
        text = field.docstring.value if field.docstring else _comment(field)
        # On one line, and without the errors of a property.
        text = " ".join(text.partition("Raises:")[0].split())
        said.append(f"  {field.name}: {text or 'See its type.'}")
        field.public = False
    before, raises, after = kind.docstring.value.partition("\nRaises:")
    kind.docstring.value = "\n".join([before, "", "Attributes:", *said, raises + after])


def _comment(field: Any) -> str:
    lines, at = field.lines_collection[field.filepath], field.lineno - 1
    while at and re.match(r"\s+\w+: ", lines[at - 1]):
        at -= 1
    comment: list[str] = []
    while at and (said := re.match(r"\s*#: ?(.*)", lines[at - 1])):
        comment.insert(0, said[1])
        at -= 1
    return " ".join(comment)
