"""The configs that come with the package are planned, and the plan is shown."""

from pathlib import Path

import pytest

from qdrun.runner.cli.app import app

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_is_planned_in_words(config, capsys):
    app(["plan", str(config)], standalone_mode=False)
    out = capsys.readouterr().out
    assert "memory of one trial" in out
    assert "warning: " not in out, "a right job loses no gradient"
    for section in ("optimize", "search"):
        assert (f"\n{section}: " in out) == (f"\n{section}:" in config.read_text(encoding="utf-8"))
