"""Ray of one run on this machine, without the processes that such a run has no use for.

``ray.init`` starts processes one after the other and waits for each: the server of the dashboard (also where no dashboard is wanted, then
it counts usage), the autoscaler's monitor, a monitor that copies logs to the driver, idle workers, then the node itself. Here the monitors
and the idle workers are left out, and a dashboard starts beside the node. ``benchmarks/ray_start.py`` compares both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

OPTIONS = {"prestart_worker_first_driver": False}
"""Of Ray's own configuration: workers of a run start with its first trials; idle ones would take the cores from the start of Ray itself."""


class Beside:
    """A call in a thread of its own that stays when the call has ended: processes that it started die with their thread."""

    def __init__(self) -> None:
        self._result: Future[str] | None = None

    def begin(self, call: Callable[[], str]) -> None:
        """Start the call."""
        self._result = Future()
        threading.Thread(target=self._run, args=(call, self._result), name="dashboard", daemon=True).start()

    def result(self) -> str:
        """What the call has returned, once it has; empty where none was begun. Raises what the call raised."""
        return "" if self._result is None else self._result.result()

    def _run(self, call: Callable[[], str], result: Future[str]) -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)
        threading.Event().wait()


@contextmanager
def small_head() -> Iterator[Beside]:
    """While open, ``ray.init`` starts a head that has only what one run uses; where its dashboard is says ``Beside.result``, later.

    Ray has no option for this: the class of its node is replaced by one that inherits from it (``ray.cluster_utils`` builds the same class
    with the same parameters).
    """
    from ray._private import node

    whole, beside = node.Node, Beside()

    class SmallHead(whole):
        def __init__(self, ray_params: Any, *others: Any, **options: Any) -> None:
            ray_params.no_monitor, ray_params.include_log_monitor = True, False
            super().__init__(ray_params, *others, **options)

        def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
            start = super().start_api_server

            def url() -> str:
                start(include_dashboard=include_dashboard, raise_on_failure=raise_on_failure)
                return self.webui_url

            if include_dashboard:
                beside.begin(url)

    node.Node = SmallHead
    try:
        yield beside
    finally:
        node.Node = whole


__all__ = ["OPTIONS", "Beside", "small_head"]
