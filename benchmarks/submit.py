"""What ``qdrun submit`` costs beyond the trials' own work: seconds to the first trial, milliseconds per trial.

python -m benchmarks.submit [config.yaml] [--rounds 3]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.yaml"


def submit(config: Path, folder: str) -> dict:
    """One run of the command, with ``--json``; returns its document."""
    command = [str(Path(sys.executable).parent / "qdrun"), "submit", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise SystemExit(f"submit failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    """Run and print the timing part of each document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", type=Path, default=CONFIG)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            document = submit(options.config.resolve(), folder)
        print(json.dumps({key: document[key] for key in document if "second" in key or key in ("timing", "timings", "counts")}))


if __name__ == "__main__":
    main()
