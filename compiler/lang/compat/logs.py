"""``qd.info``, ``qd.warn``, ..: the logger ``qdrun`` by Quadrants' names, also as the module ``qdrun._logging``."""

from __future__ import annotations

import logging
from typing import Any

TRACE, DEBUG, INFO, WARN, ERROR, CRITICAL = "trace", "debug", "info", "warn", "error", "critical"
LOGGER = logging.getLogger("qdrun")
_LEVELS = {TRACE: 5, DEBUG: 10, INFO: 20, WARN: 30, ERROR: 40, CRITICAL: 50}
_CALLER = 3
"""Frames between the user's line and ``Logger.log``."""


def set_logging_level(level: str) -> None:
    """The least level of messages that the logger ``qdrun`` passes on: trace, debug, info, warn, error or critical."""
    LOGGER.setLevel(_LEVELS[level.lower()])


def is_logging_effective(level: str) -> bool:
    """Whether messages of a level are passed on."""
    return LOGGER.isEnabledFor(_LEVELS[level.lower()])


def _log(level: str, msg: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if is_logging_effective(level):
        LOGGER.log(_LEVELS[level], "%s", msg.format(*args, **kwargs), stacklevel=_CALLER)


def trace(msg: str, *args: Any, **kwargs: Any) -> None:
    """Log ``msg.format(*args, **kwargs)`` below the level of debug messages."""
    _log(TRACE, msg, args, kwargs)


def debug(msg: str, *args: Any, **kwargs: Any) -> None:
    """Log ``msg.format(*args, **kwargs)`` as a debug message."""
    _log(DEBUG, msg, args, kwargs)


def info(msg: str, *args: Any, **kwargs: Any) -> None:
    """Log ``msg.format(*args, **kwargs)``. The level is off unless ``set_logging_level`` or Python's ``logging`` sets it."""
    _log(INFO, msg, args, kwargs)


def warn(msg: str, *args: Any, **kwargs: Any) -> None:
    """Log ``msg.format(*args, **kwargs)`` as a warning."""
    _log(WARN, msg, args, kwargs)


def error(msg: str, *args: Any, **kwargs: Any) -> None:
    """Log ``msg.format(*args, **kwargs)`` as an error. Raises nothing."""
    _log(ERROR, msg, args, kwargs)


def critical(msg: str, *args: Any, **kwargs: Any) -> None:
    """Log ``msg.format(*args, **kwargs)`` above the level of errors."""
    _log(CRITICAL, msg, args, kwargs)


__all__ = ["CRITICAL", "DEBUG", "ERROR", "INFO", "TRACE", "WARN", "is_logging_effective", "set_logging_level"]
