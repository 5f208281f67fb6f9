"""Walks over Python's syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Every node of a tree in the order of ``ast.walk``, which makes three Python calls for each; a kernel is walked ten times."""
    return nodes_in([tree])


def nodes_in(trees: Iterable[ast.AST]) -> list[ast.AST]:
    """Every node of several trees, those nearer to a root first."""
    found = list(trees)
    for node in found:  # the list grows meanwhile
        for name in node._fields:
            part = getattr(node, name, None)
            if isinstance(part, ast.AST):
                found.append(part)
            elif isinstance(part, list):
                for item in part:
                    if isinstance(item, ast.AST):
                        found.append(item)
    return found


def children_of(node: ast.AST) -> list[ast.AST]:
    """The nodes that a node holds itself, as ``ast.iter_child_nodes`` yields them."""
    found: list[ast.AST] = []
    for name in node._fields:
        part = getattr(node, name, None)
        for item in part if isinstance(part, list) else (part,):
            if isinstance(item, ast.AST):
                found.append(item)
    return found
