"""YAML that remembers its lines: safe-loaded, size-limited, no duplicate keys, no aliases; errors point at the user's line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ...compiler.errors import QdrunError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class ConfigProblem:
    """One problem of a config: text, line (1-based), column (0-based), and the remedy.

    ``source``: the origin of the value, if it is not the file.
    """

    what: str
    line: int | None = None
    column: int = 0
    path: str = ""
    allowed: tuple[str, ...] = ()
    hint: str = ""
    source: str = ""


class ConfigError(QdrunError, ValueError):
    """A config is wrong and nothing was started. ``problems`` keeps the parts of the message."""

    def __init__(self, file: str, text: str, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("\n".join(render(file, text, problem) for problem in problems))
        self.file, self.text, self.problems = file, text, tuple(problems)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.file, self.text, self.problems)


def render(file: str, text: str, problem: ConfigProblem) -> str:
    """One problem as text: file and line, what is wrong, the user's line with a caret, the allowed values, what to do."""
    where = problem.source or (f"{file}:{problem.line}" if problem.line is not None else file)
    key = f"`{problem.path}`: " if problem.path else ""
    lines = [f"{where}: {key}{problem.what}"]
    source = text.splitlines()
    if problem.line is not None and 0 < problem.line <= len(source):
        shown = source[problem.line - 1]
        word = re.match(r"[\w.\-]+|\S", shown[problem.column :])
        lines += [
            f"  {problem.line:>4} | {shown}",
            "       | " + " " * problem.column + "^" * (len(word.group()) if word else 1),
        ]
    if problem.allowed:
        lines.append(f"  allowed: {', '.join(problem.allowed)}")
    if problem.hint:
        lines.append(f"  do: {problem.hint}")
    return "\n".join(lines)


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """A hint with the nearest allowed word, or an empty text."""
    near = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else ""


class Loader(yaml.SafeLoader):
    """Safe loader with YAML 1.2 words: only true and false are booleans, and 1e-3 is a number."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag == "tag:yaml.org,2002:null"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf)|\.(?:nan|NaN))$"
)
Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$")
Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")}


@dataclass(frozen=True)
class Document:
    """A parsed YAML file: its data, and for every key and item the line and column where it stands.

    ``sources``: where values came from that replaced those of the file.
    """

    file: str
    text: str
    data: Any
    marks: dict[KeyPath, tuple[int, int]]
    sources: dict[KeyPath, str] = field(default_factory=dict)

    def problem(self, path: KeyPath, what: str, *, allowed: Sequence[str] = (), hint: str = "") -> ConfigProblem:
        """A problem at ``path``, located at the deepest part of the path that the file has."""
        source = next((self.sources[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.sources), "")
        if source:
            return ConfigProblem(what, None, 0, dotted(path), tuple(allowed), hint, source)
        known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in self.marks), ())
        line, column = self.marks.get(known, (1, 0))
        return ConfigProblem(what, line, column, dotted(path), tuple(allowed), hint)

    def error(self, *problems: ConfigProblem) -> ConfigError:
        """The error to raise for ``problems``, in the order of their lines."""
        return ConfigError(self.file, self.text, sorted(problems, key=lambda p: p.line or 0))


def dotted(path: KeyPath) -> str:
    """A path as users write it: ``sweep.params.stiffness`` and ``gradients[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read_document(path: Path) -> Document:
    """Read and parse a YAML file.

    Raises:
        ConfigError: the file cannot be read, is larger than 1 MiB, is not YAML, has duplicate keys, aliases or tags.
    """
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(
            file, "", [ConfigProblem(f"cannot read the config: {reason}", hint="give the path of a YAML file")]
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(file, "", [ConfigProblem("the config is not UTF-8 text", hint="save it as UTF-8")]) from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            file, "", [ConfigProblem(f"the config is larger than {MAX_BYTES} bytes", hint="move data out of the config")]
        )
    return parse_document(text, file)


def parse_document(text: str, file: str = "<text>") -> Document:
    """Parse YAML text; ``file`` is the name that errors show.

    Raises:
        ConfigError: the text is not YAML, is nested deeper than 32 levels, has duplicate keys, aliases or tags.
    """
    try:
        _check_events(text, file)
        node = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column) if mark else (None, 0)
        raise ConfigError(
            file, text, [ConfigProblem(f"not valid YAML: {error.problem or error.context}", line, column)]
        ) from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(file, text, [_unprintable(text)]) from error
    except yaml.YAMLError as error:
        raise ConfigError(file, text, [ConfigProblem(f"not valid YAML: {error}")]) from error
    if node is None:
        raise ConfigError(file, text, [ConfigProblem("the config is empty", hint="start from configs/quickstart.yaml")])
    builder = _Builder(file, text)
    data = builder.value(node, ())
    return Document(file, text, data, builder.marks)


def _unprintable(text: str) -> ConfigProblem:
    """The problem of the first character that YAML does not allow."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    place = found.start() if found else 0
    code = ord(text[place]) if text else 0
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place) - 1
    if 0xD800 <= code <= 0xDFFF:  # how Python holds a byte that it could not decode
        what = f"the byte 0x{code & 0xFF:02x} is not UTF-8"
        return ConfigProblem(what, line, column, hint="set the locale of the terminal to one of UTF-8, such as LC_ALL=C.UTF-8")
    escape = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    return ConfigProblem(
        f"the character U+{code:04X} is not allowed in YAML", line, column, hint=f'write it as "{escape}", in double quotes'
    )


def _check_events(text: str, file: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        line, column = event.start_mark.line + 1, event.start_mark.column
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(
                file, text, [ConfigProblem("an alias (*name) is not allowed", line, column, hint="write the value out")]
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ConfigError(file, text, [ConfigProblem(f"nested deeper than {MAX_DEPTH} levels", line, column)])


class _Builder:
    """Turns nodes into plain data and notes where each value stands."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text
        self.marks: dict[KeyPath, tuple[int, int]] = {}
        self.scalars = yaml.constructor.SafeConstructor()

    def refuse(self, node: yaml.Node, what: str, hint: str = "") -> ConfigError:
        mark = node.start_mark
        return ConfigError(self.file, self.text, [ConfigProblem(what, mark.line + 1, mark.column, hint=hint)])

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.marks.setdefault(path, (node.start_mark.line + 1, node.start_mark.column))
        if node.tag not in _PLAIN_TAGS:
            raise self.refuse(node, f"the tag `{node.tag}` is not allowed", "write plain numbers, words, lists and maps")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self.scalars.construct_object(node)
        except ValueError as error:
            raise self.refuse(node, f"`{node.value}` is not a number", "quote it if it is a word") from error

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                raise self.refuse(key_node, "a key must be a word", "quote it if it should be one")
            key = key_node.value
            here = (*path, key)
            if key in data:
                first = self.marks[here][0]
                raise self.refuse(key_node, f"the key `{key}` stands twice (first in line {first})", "keep one of them")
            self.marks[here] = (key_node.start_mark.line + 1, key_node.start_mark.column)
            data[key] = self.value(value_node, here)
        return data
