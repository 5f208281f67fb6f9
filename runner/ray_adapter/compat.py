"""The private or guessed names of Ray that this package uses, each with what happens where a version of Ray lacks it.

``pages.job_store`` has further ones. ``compat_check`` compares all with the Ray that is installed; a test holds that against the versions
that ``pyproject.toml`` allows. A name that is missing costs comfort and no result: Ray is then started the public way, after one warning
that names it.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

STARTED_WITH = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_metrics_collection": "0", "RAY_GRAFANA_HOST": "DISABLED"}
"""Of Ray's own configuration, for a Ray that one run starts. Workers start with the first trials; idle ones would take the cores from the
start of Ray itself. Its metrics port listens on every interface and has no password, so it stays closed. Where no Grafana is named, the
dashboard would look for one at port 3000, answer its own page with error 500, and show empty frames in place of charts. A variable that
the user has set stays as it is, and one that a version of Ray does not know changes nothing."""
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
AGENT_COMMANDS = ("--dashboard_agent_command", "--runtime_env_agent_command")
AGENT_PLACE = ("--session_dir", "--node_id", "--node_ip_address")
"""Options of the node's process, and the names under which its agent of the dashboard says its ports."""
ALIVE_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
ANSWER_S, ASK_TIMES = 5.0, 3
TOKEN_BYTES = 32
"""Of a token; Ray takes any text, and makes one of 32 random bytes in hexadecimal digits itself."""


class RayChanged(UserWarning):
    """Ray lacks a private name that this package knows; what that costs is in the text."""


# ---- a head with the processes that one run uses


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

    ``ray.init`` starts processes one after the other and waits for each: the server of the dashboard (also where no dashboard is wanted,
    then it counts usage), the autoscaler's monitor, a monitor that copies logs to the driver, idle workers, then the node itself, which
    waits for two agents. Here the log monitor and the idle workers are left out, and a dashboard starts beside the node. Without a
    dashboard the autoscaler's monitor is left out, which writes the cluster status of its first page; without a dashboard and without
    metrics the agents are left out, too: see ``idle_agents``. Ray has no option for this: the class of its node is replaced by one that
    inherits from it. ``benchmarks/ray_start.py`` compares both.
    """
    beside = Beside()
    if lacks := lacks_node():
        warnings.warn(
            f"this version of Ray has no {lacks}: it is started with all its processes, which takes some seconds longer",
            RayChanged,
            stacklevel=2,
        )
        yield beside
        return
    from ray._private import node

    whole = node.Node

    class SmallHead(whole):
        def __init__(self, ray_params: Any, *others: Any, **options: Any) -> None:
            ray_params.no_monitor, ray_params.include_log_monitor = not ray_params.include_dashboard, False
            super().__init__(ray_params, *others, **options)

        def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
            start = super().start_api_server

            def url() -> str:
                start(include_dashboard=include_dashboard, raise_on_failure=raise_on_failure)
                return self.webui_url

            if include_dashboard:
                beside.begin(url)

        def start_raylet(self, *args: Any, **options: Any) -> None:
            measured = os.environ.get("RAY_enable_metrics_collection", "1").lower() not in ("0", "false")
            with nullcontext() if measured or self._ray_params.include_dashboard else idle_agents():
                super().start_raylet(*args, **options)

        def kill_all_processes(self, *args: Any, **options: Any) -> None:
            for made in self.all_processes.get(
                "monitor", ()
            ):  # when asked to end, it would look for the head, which ends first
                made.process.kill()
            super().kill_all_processes(*args, **options)

    node.Node = SmallHead
    try:
        yield beside
    finally:
        node.Node = whole


@contextmanager
def idle_agents() -> Iterator[None]:
    """While open, a node starts with ``idle_agent`` in place of its two agents, for which it would wait longer than for all else.

    The agent of the dashboard serves that, the Jobs API and the metrics port. The one of runtime environments is started when a job asks
    for such an environment.
    """
    from ray._private import services

    start = services.start_ray_process

    def started(command: list[str], *others: Any, **options: Any) -> Any:
        return start(_with_idle_agents(command), *others, **options)

    services.start_ray_process = started
    try:
        yield
    finally:
        services.start_ray_process = start


def _with_idle_agents(command: list[str]) -> list[str]:
    """The command of a node, with other agents; as it is where it lacks an option that this needs."""
    told = {name: rest for name, _, rest in (word.partition("=") for word in command)}
    if not all(told.get(name) for name in (*AGENT_COMMANDS, *AGENT_PLACE)):
        return command
    session, node, address = (told[name] for name in AGENT_PLACE)
    idle = [sys.executable, "-I", "-S", str(Path(__file__).with_name("idle_agent.py")), session, node]
    served, environments = AGENT_COMMANDS
    changed = {
        served: subprocess.list2cmdline([*idle, ",".join(AGENT_PORTS)]),
        environments: subprocess.list2cmdline([*idle, "runtime_env_agent_port", address]) + " " + told[environments],
    }
    return [f"{name}={changed[name]}" if (name := word.partition("=")[0]) in changed else word for word in command]


@contextmanager
def started_with(*, ahead: bool = False) -> Iterator[None]:
    """While open, a Ray that is started has the configuration of ``STARTED_WITH``. ``ahead``: and idle workers, for the runs to come."""
    ours = {name: value for name, value in STARTED_WITH.items() if name not in os.environ}
    if ahead:
        ours.pop("RAY_prestart_worker_first_driver", None)
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def lacks_node() -> str:
    """What ``small_head`` needs and does not find; empty where all of it is there."""
    try:
        from ray._private import node, parameter, services

        start = inspect.signature(node.Node.start_api_server).parameters
        params = inspect.signature(parameter.RayParams.__init__).parameters
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        return f"class of a node that can be made smaller ({error})"
    wanted: dict[str, Container[str]] = {
        "include_dashboard": start,
        "raise_on_failure": start,
        "no_monitor": params,
        "include_log_monitor": params,
    }
    wanted |= {
        "webui_url": dir(node.Node),
        "start_raylet": dir(node.Node),
        "kill_all_processes": dir(node.Node),
        "start_ray_process": dir(services),
    }
    return ", ".join(name for name, there in wanted.items() if name not in there)


# ---- from where workers import


class _NoPlaces(list[str]):
    """Ray extends this list by the folder of the command and the working directory, and puts them in front of its workers' paths."""

    def extend(self, places: Iterable[str]) -> None:
        """Leave them out."""


def job_config(metadata: Mapping[str, str], runtime_env: dict[str, Any] | None = None) -> Any:
    """A ``JobConfig`` of Ray whose workers import nothing from the directory in which a command is given: a module there would come
    before an installed one.
    """
    from ray.job_config import JobConfig

    made = JobConfig(metadata=dict(metadata), runtime_env=runtime_env)
    if hasattr(made, "_py_driver_sys_path"):
        made._py_driver_sys_path = _NoPlaces()
    return made


def drop_places_of_driver() -> None:
    """In a worker: take the places off its path that Ray has put there. A program of a user's may have opened Ray itself, and workers of
    a version of Ray that ``job_config`` does not know have them, too.
    """
    with suppress(ImportError, AttributeError):
        from ray._private import worker

        for place in worker.global_worker.core_worker.get_job_config().py_driver_sys_path:
            if place in sys.path:
                sys.path.remove(place)


# ---- its settings, once it has been loaded


def read_settings_again() -> None:
    """Have a Ray that was loaded earlier, by a job's file for instance, see the variables that were set since: it reads them once.

    Raises:
        RuntimeError: it cannot; its authentication would not be what the variables say.
    """
    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
    except (ImportError, AttributeError, TypeError) as error:
        raise RuntimeError(
            f"Ray was imported before qdrun could set RAY_AUTH_MODE, and this version cannot read it again ({error})\n"
            f"  do: set RAY_AUTH_MODE={os.environ.get('RAY_AUTH_MODE', 'token')} in the environment, or import ray inside of a function"
        ) from error


def quiet_deaths() -> None:
    """Ray prints the deaths of workers on stdout, which the run reports itself."""
    with suppress(ImportError, AttributeError):  # then they are printed twice
        from ray._private import worker

        worker._worker_logs_enabled = False


def available() -> dict[str, dict[str, float]]:
    """The free resources of each node, by its id; nothing where Ray lacks the name: then groups wait for any node."""
    with suppress(ImportError, AttributeError):
        from ray._private import state

        return state.available_resources_per_node()
    return {}


def waiting(ours: Container[str]) -> list[dict[str, float]]:
    """What tasks, actors and placement groups wait for in Ray's queue, a kind of them each; nothing where Ray lacks the name.

    Args:
        ours: ids of groups that are left out.
    """
    try:
        from ray import get_runtime_context
        from ray.autoscaler.v2.sdk import get_cluster_status
    except ImportError:
        return []
    found = get_cluster_status(get_runtime_context().gcs_address).resource_demands
    demands = [*found.ray_task_actor_demand, *(one for one in found.placement_group_demand if one.pg_id not in ours)]
    return [dict(one.bundle) for demand in demands for one in demand.bundles_by_count]


def loaded() -> bool:
    """Whether this process has loaded Ray."""
    return "ray" in sys.modules


# ---- its client of the Jobs API


def direct_client() -> Any:
    """Ray's client of the Jobs API as a class that sends the token to the given address alone: through no proxy of the environment
    (``http_proxy`` and its like), and after no redirection.

    Raises:
        RuntimeError: this version of Ray sends its requests in another way.
    """
    from ray.job_submission import JobSubmissionClient

    if not hasattr(JobSubmissionClient, "_do_request"):
        raise RuntimeError("this version of Ray may send the token to a proxy\n  do: install a version that qdrun supports")

    class DirectClient(JobSubmissionClient):
        def _do_request(self, method: str, endpoint: str, **how: Any) -> Any:
            return super()._do_request(method, endpoint, **how, proxies=dict(_NO_PROXIES), allow_redirects=False)

    return DirectClient


def keep_loopback_direct() -> None:
    """Keep gRPC's connections to this machine away from a proxy of the environment, for this process and those that it starts.

    Ray's own channels use no proxy; its exporter of metrics, which sends the token to the agent of the node, uses the environment's.
    """
    names = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
    told = next((os.environ[name] for name in names if name in os.environ), "").split(",")
    os.environ["no_grpc_proxy"] = ",".join([*(part for part in told if part not in ("", *LOOPBACK)), *LOOPBACK])


LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NO_PROXIES = {"http": "", "https": "", "all": ""}
"""For ``requests``: an empty address is no proxy, and keeps those of the environment away."""


# ---- whether a head wants a token


def asks_for_token(head: str) -> bool | None:
    """Whether the control plane at host:port refuses clients without a token. None: it gave another answer, or none.

    Only a refusal for the lack of a token counts as one: an unknown method, a proxy or a head that hangs say nothing.
    """
    try:
        import grpc  # comes with ray[default]
    except ImportError:
        return None
    refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    passing = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    with grpc.insecure_channel(head, options=[("grpc.enable_http_proxy", 0)]) as channel:
        for _ in range(ASK_TIMES):
            try:
                channel.unary_unary(ALIVE_METHOD)(b"", timeout=ANSWER_S)
            except grpc.RpcError as error:
                code = error.code()  # pyright: ignore[reportAttributeAccessIssue]
                if code in refused:
                    return True
                if code not in passing:
                    return None
            else:
                return False
    return None


__all__ = [
    "STARTED_WITH",
    "Beside",
    "RayChanged",
    "asks_for_token",
    "available",
    "direct_client",
    "drop_places_of_driver",
    "idle_agents",
    "job_config",
    "loaded",
    "quiet_deaths",
    "read_settings_again",
    "small_head",
    "started_with",
    "waiting",
]
