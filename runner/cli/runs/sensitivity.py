"""The command ``qdrun sensitivity``."""

from __future__ import annotations

from ..base import Json, Run, Runs, print_document, reported


def sensitivity(run: Run, runs: Runs = "runs", as_json: Json = False) -> None:
    """Show what the gradients of a sweep say about its parameters: effects, elasticities, interactions; and whether its losses agree."""
    with reported(as_json):
        from ...sensitivity.study import sensitivity as sensitivity_of
        from ...store.layout import find

        found = sensitivity_of(find(run, runs))
        if as_json:
            print_document("sensitivity", found.data())
        else:
            print(found.text)
