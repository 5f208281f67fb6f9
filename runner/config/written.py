"""Configs as text: data in YAML that ``load_config`` reads back as it was."""

from __future__ import annotations

from typing import Any

import yaml

from ...compiler.errors import QdrunError
from .yaml_lines import Loader


class NotData(QdrunError, TypeError):
    """A value that no config can hold."""


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that our loader would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return True


_Dumper.yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


def config_text(data: dict[str, Any]) -> str:
    """The text of a config: a key each line, lists of numbers in one.

    Raises:
        NotData: a value is no map, list, number, text, boolean or None.
    """
    try:
        return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120)
    except yaml.representer.RepresenterError as error:
        value = error.args[1] if len(error.args) > 1 else None
        raise NotData(
            f"{value!r:.80}, a {type(value).__name__}, cannot be written into a config\n"
            "  do: give numbers, texts, lists, maps or arrays of numbers"
        ) from error


__all__ = ["NotData", "config_text"]
