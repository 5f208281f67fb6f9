"""docs/cli.md is made from the app, and is fresh."""

from pathlib import Path

import pytest

from qdrun.runner.cli import reference
from qdrun.runner.cli.app import app
from qdrun.runner.cli.documents import TYPES, adapter

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_is_fresh():
    made = "python -m qdrun.runner.cli.reference > docs/cli.md"
    assert PAGE.read_text(encoding="utf-8") == reference.page(), f"make it again: {made}"


def test_every_command_option_field_and_exit_code_is_on_the_page():
    page = reference.page()
    for command in app.registered_commands:
        section = page.split(f"\n## {command.callback.__name__}\n")[1].split("\n## ")[0]
        found = reference.parameters(command.callback)
        assert all(f"`{name}`" in section for p in found for name in p.names), command.callback.__name__
        assert all(p.help for p in found), "every argument and option says what it is"
        name = command.callback.__name__
        fields = adapter(name).json_schema(mode="serialization")["properties"] if name in TYPES else ()
        assert all(f"| `{field}` |" in section for field in fields)
    assert {c.callback.__name__ for c in app.registered_commands} >= set(TYPES) - {"error"}


def test_every_command_has_json_but_those_that_print_json_anyway():
    without = {c.callback.__name__ for c in app.registered_commands if "as_json" not in c.callback.__annotations__}
    assert without == {"schema"}


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_field_of_a_document_says_what_it_means(name):
    schema = adapter(name).json_schema(mode="serialization")
    rows = list(reference._fields(schema, schema.get("$defs", {}), ""))
    assert rows and all(kind and meaning for _, kind, meaning in rows)
