"""The configs that come with the package are planned, explained, and have right gradients."""

import json
from itertools import groupby
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qdrun.runner.cli.app import app

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
FAMILIES = {name: list(paths) for name, paths in groupby(CONFIGS, lambda path: path.stem.partition("_optimize")[0])}
"""Configs of one simulation are tested one after the other: a process compiles it once."""


def run(command, config, *more):
    result = CliRunner().invoke(app, [command, str(config), *more])
    assert result.exit_code == 0, f"{config}\n{result.output}"
    return result.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_shipped_configs_are_planned_and_explained_and_have_right_gradients(family):
    for config in FAMILIES[family]:
        out = run("plan", config)
        assert "memory of one trial" in out
        assert "warning: " not in out, "a right job loses no gradient"
        for section in ("optimize", "search"):
            assert (f"\n{section}: " in out) == (f"\n{section}:" in config.read_text(encoding="utf-8"))
        parts = json.loads(run("explain", config, "--json"))["memory"]
        assert all(part["explanation"]["plan"]["bytes"] > 0 for part in parts), config
        run("check", config, "--in-process")


def test_every_shipped_config_is_in_a_family():
    assert len(CONFIGS) > 30 and [path for paths in FAMILIES.values() for path in paths] == CONFIGS
