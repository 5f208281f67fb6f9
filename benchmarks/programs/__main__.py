"""``python -m benchmarks.programs --taichi PLACE --difftaichi PLACE --quadrants PLACE [--peer-python PATH] ..`` (``--help`` has the rest)

Runs public programs unchanged on the CPU, through ``qdrun.compat`` and with Taichi itself: which run, which are refused by name, how far
their numbers are apart, and the seconds of the first frame (with compilation) and of later ones. ``--strict`` compares them once more in
f64 and one thread, with the same random numbers and the same clock. A PLACE is an address that ``git clone`` takes, or the path of a
clone or a mirror. Nothing of the programs is kept in this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
FOLDERS = {"taichi": "python/taichi/examples", "difftaichi": "examples", "quadrants": "python/quadrants/examples"}
SKIPPED = (
    *(
        "features/",
        "patterns.py",
        "smoke_jax",
        "smoke_pytorch",
        "smoke_autograd",
        "smoke_taichi_gpu",
        "plot_losses",
        "robot_config",
    ),
    *("toi_visualize", "mass_spring_interactive", "lcg_python", "taichi_ngp", "__init__", "texture_graph", "simple_texture"),
)
"""What draws on the screen only, computes with another package, or needs files that are not with it."""
ARGUMENTS = {"mass_spring.py": ["1", "train"], "rigid_body.py": ["1", "train"]}
FRAMES = 4
EXACT = 1e-4
"""The relative difference up to which f32 numbers are taken for equal."""
EQUAL = 1e-12
"""The same for f64 numbers of strict runs."""


def fetch(name: str, place: str, where: Path) -> Path:
    """The programs of a repository in a folder."""
    target = where / name
    address = Path(place).resolve().as_uri() if Path(place).exists() else place
    subprocess.run(["git", "clone", "-q", "--depth", "1", address, str(target)], check=True)
    return target / FOLDERS.get(name, "")


def child(python: str, side: str, program: Path, seconds: int, out: Path) -> dict[str, Any]:
    """The outcome of a program on one side."""
    out.unlink(missing_ok=True)
    command = [python, str(HERE / "one.py"), side, str(program), str(FRAMES), str(out), *ARGUMENTS.get(program.name, [])]
    env = os.environ | {"MPLBACKEND": "Agg", "HOME": str(out.parent), "TI_ENABLE_TORCH": "0", "TI_ENABLE_PADDLE": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=env)
    except subprocess.TimeoutExpired:
        return {"status": "too long", "text": f"{seconds} s"}
    if not out.exists():
        return {"status": "crashes", "text": f"{done.returncode}: {done.stderr[-300:]}"}
    return pickle.loads(out.read_bytes())


def difference(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float | None:
    """The largest difference of arrays that both have, relative to the largest number of the array; None: they have none in common."""
    both = [(ours[name], theirs[name]) for name in ours.keys() & theirs.keys() if ours[name].shape == theirs[name].shape]
    worst = [
        float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30))
        for a, b in both
        if a.size and np.isfinite(b).all() and np.max(np.abs(b)) > 0
    ]
    return max(worst, default=None)


def checked(python: str, program: Path, seconds: int, out: Path) -> str:
    """The first index that the program has out of range, where ``debug=True`` finds one; else empty."""
    text = child(python, "qdrun:debug", program, seconds, out)["text"]
    return "; ".join(text.splitlines()[:2]) if "out of range" in text else ""


def strict_difference(pythons: tuple[str, str], program: Path, seconds: int, out: Path) -> float | None:
    """``difference`` of a run in which only a fault can make one, see ``strict``; None: it does not run like this on both sides."""
    sides = [child(p, f"{side}:strict", program, seconds, out) for p, side in zip(pythons, ("qdrun", "taichi"), strict=True)]
    return difference(sides[0]["arrays"], sides[1]["arrays"]) if all(s["status"] == "runs" for s in sides) else None


def row_of(name: str, program: Path, ours: dict[str, Any], theirs: dict[str, Any] | None) -> dict[str, Any]:
    """A row of the table."""
    row: dict[str, Any] = {
        "program": name,
        "ours": ours["status"],
        "text": ours["text"].splitlines()[0] if ours["text"] else "",
    }
    row["random"] = any(w in program.read_text(encoding="utf-8", errors="replace") for w in ("random", "randn"))
    row |= _times("our", ours)
    if theirs is not None:
        row |= {"theirs": theirs["status"], "their_text": theirs["text"][:200], **_times("their", theirs)}
        if ours["status"] == theirs["status"] == "runs":
            row["difference"] = difference(ours["arrays"], theirs["arrays"])
    if ours["status"] == "runs":
        row["finite"] = all(np.isfinite(a).all() for a in ours["arrays"].values())
    return row


def _times(side: str, outcome: dict[str, Any]) -> dict[str, float]:
    if outcome["status"] != "runs":
        return {}
    return {
        f"{side}_first": outcome["first"],
        **({f"{side}_frame": statistics.median(outcome["frames"])} if outcome["frames"] else {}),
    }


def shown(row: dict[str, Any]) -> str:
    """A line of the table."""

    def ratio(kind: str) -> str:
        a, b = row.get(f"our_{kind}"), row.get(f"their_{kind}")
        return f"{a / b:5.2f}" if a and b else "    -"

    numbers = "" if row.get("difference") is None else f"{row['difference']:.0e}" + (" (draws)" if row["random"] else "")
    numbers += f" {row['strict']:.0e}" if row.get("strict") is not None else ""
    frame = f"{row['our_frame'] * 1e3:9.2f} ms" if "our_frame" in row else " " * 12
    sides = f"{row['program']:52} {row['ours']:9} {row.get('theirs', ''):9}"
    return f"{sides} {numbers:21} {ratio('first')} {ratio('frame')} {frame} {(row.get('range') or row['text'])[:90]}"


def main() -> None:
    """Run all programs and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__.splitlines()[2])
    for name in FOLDERS:
        parser.add_argument(f"--{name}", help="where its repository is: an address or a path")
    parser.add_argument("--peer-python", help="the Python that has Taichi 1.7.4; without it ours run alone")
    parser.add_argument("--strict", action="store_true", help="compare once more in f64, one thread, the same draws and clock")
    parser.add_argument("--checks", action="store_true", help="run once more with debug=True, for indices out of range")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--seconds", type=int, default=120, help="the most that one program may take")
    parser.add_argument("--out", help="write the rows to this JSON file")
    o = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'program':52} {'qdrun':9} {'taichi':9} {'difference, strict':21} first frame  a frame here")
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        for repository in FOLDERS:
            place = getattr(o, repository)
            base = fetch(repository, place, where) if place else None
            for program in sorted(base.rglob("*.py")) if base else []:
                name = f"{repository}/{program.relative_to(base)}"
                if any(s in name for s in SKIPPED) or (o.only and not any(word in name for word in o.only.split(","))):
                    continue
                ours = child(sys.executable, "qdrun", program, o.seconds, where / "ours.pickle")
                peer = o.peer_python if repository != "quadrants" else None
                theirs = child(peer, "taichi", program, o.seconds, where / "theirs.pickle") if peer else None
                rows.append(row_of(name, program, ours, theirs))
                if o.strict and peer and "difference" in rows[-1]:
                    rows[-1]["strict"] = strict_difference((sys.executable, peer), program, o.seconds, where / "strict.pickle")
                if o.checks:
                    rows[-1]["range"] = checked(sys.executable, program, o.seconds, where / "checked.pickle")
                print(shown(rows[-1]), flush=True)
                if o.out:
                    Path(o.out).write_text(json.dumps(rows, indent=1))
    summary(rows)


def summary(rows: list[dict[str, Any]]) -> None:
    """The counts, and the geometric means of the ratios."""
    for status in sorted({r["ours"] for r in rows}):
        print(f"{status}: {sum(r['ours'] == status for r in rows)} of {len(rows)}")
    compared = [r for r in rows if r.get("difference") is not None and not r["random"]]
    print(
        f"equal to {EXACT:g}: {sum(r['difference'] < EXACT for r in compared)} of {len(compared)} that draw no random numbers"
    )
    strict = [r["strict"] for r in rows if r.get("strict") is not None]
    if strict:
        print(f"equal to {EQUAL:g} in f64, one thread, with the same draws: {sum(d < EQUAL for d in strict)} of {len(strict)}")
    for kind in ("first", "frame"):
        ratios = [r[f"our_{kind}"] / r[f"their_{kind}"] for r in rows if r.get(f"our_{kind}") and r.get(f"their_{kind}")]
        if ratios:
            what = "the first frame" if kind == "first" else "a later frame"
            print(f"time of {what}, ours / theirs: {statistics.geometric_mean(ratios):.2f} ({len(ratios)} programs)")


if __name__ == "__main__":
    main()
