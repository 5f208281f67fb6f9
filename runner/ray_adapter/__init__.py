"""Everything that imports Ray: clusters, actors, placement groups, the Jobs API.

Type checkers would take a folder named ray for the package.
"""

import sys


def _import_in_a_notebook() -> None:
    """Import Ray without its advice, and that of tqdm, to install ipywidgets: our progress needs none."""
    import logging
    import warnings

    level, logger = logging.WARNING, logging.getLogger("ray.widgets.util")
    before = logger.level
    logger.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")
            import ray  # noqa: F401
    finally:
        logger.setLevel(before)


if "IPython" in sys.modules and "ray" not in sys.modules:
    _import_in_a_notebook()
