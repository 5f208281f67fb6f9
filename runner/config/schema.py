"""The JSON schema of a config, for editors: completion, descriptions, and wrong keys marked while one types."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from .model import RunConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema(job_params: type[BaseModel] | None = None) -> dict[str, Any]:
    """The schema of a config; with the model of a job's parameters, ``job.params`` and the keys of ``sweep.params`` are its own."""
    schema = RunConfig.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    for name, model in _sections(RunConfig):
        _describe(schema if name == RunConfig.__name__ else definitions.get(name, {}), model)
    if job_params is not None:
        _add_job(definitions, job_params)
    return {"$schema": DIALECT, **schema, "title": "qdrun config"}


def _add_job(definitions: dict[str, Any], job_params: type[BaseModel]) -> None:
    params = job_params.model_json_schema(ref_template="#/$defs/{model}")
    definitions |= params.pop("$defs", {})
    known = params.get("properties", {})
    dotted = "^(" + "|".join(known) + r")\..+"
    definitions["JobSection"]["properties"]["params"] = {
        **{key: value for key, value in params.items() if key not in ("required", "title")},
        "patternProperties": {dotted: True},
        "additionalProperties": False,
    }
    axis = definitions["SweepSection"]["properties"]["params"]["additionalProperties"]
    definitions["SweepSection"]["properties"]["params"] |= {
        "properties": {name: {**axis, "description": value.get("description", "")} for name, value in known.items()},
        "patternProperties": {dotted: axis},
        "additionalProperties": False,
    }


def _sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """A model and all models of its fields, by the names that the schema gives them."""
    yield model.__name__, model
    for field in model.model_fields.values():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _sections(kind)


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Give the properties of a section the lines of its docstring that are about them, and the section the rest."""
    text = inspect.getdoc(model) or ""
    head, _, attributes = text.partition("\nAttributes:\n")
    schema = next((part for part in schema.get("anyOf", ()) if "properties" in part), schema)
    if "properties" not in schema:
        return
    schema["description"] = " ".join(head.split())
    name = ""
    for line in attributes.splitlines():
        if line.startswith("    ") and not line.startswith("     ") and ": " in line:
            name, _, said = line.strip().partition(": ")
            schema["properties"].get(name, {})["description"] = said
        elif name:
            schema["properties"][name]["description"] += " " + line.strip()


def keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Every key of a config that holds a value, dotted."""
    from .axes import Axis

    out = []
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        out += keys(inner, f"{prefix}{name}.") if inner and inner is not Axis else [prefix + (field.alias or name)]
    return out


__all__ = ["config_schema", "keys"]
