"""Prints the table of the torture suite at the end of the run. Rows travel as properties of the reports, so xdist has them, too."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found_of: dict[tuple[str, str], str] = {}  # a case runs several times
    for reports in terminalreporter.stats.values():
        for report in reports:
            found = dict(getattr(report, "user_properties", ()))
            if "torture" in found and getattr(report, "when", "") == "call":
                thread, name, outcome = found["torture"]
                if found_of.get((thread, name)) != "WRONG":
                    found_of[thread, name] = outcome if report.passed else "WRONG"
    if not found_of:
        return
    rows = [(*key, outcome) for key, outcome in found_of.items()]
    terminalreporter.section("gradients that others got wrong")
    width = max(len(t) for t, _, _ in rows)
    for thread, name, outcome in sorted(rows):
        terminalreporter.write_line(f"{thread:<{width}}  {outcome:<9} {name}")
    counts = {o: sum(r[2] == o for r in rows) for o in ("right", "refused", "WRONG")}
    terminalreporter.write_line(", ".join(f"{n} {o}" for o, n in counts.items()))
