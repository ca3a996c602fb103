"""`make weights`: fetch the weights that are named, or all but the large ones."""

from __future__ import annotations

import sys

from . import WEIGHTS, folder
from ._fetch import FetchError, fetch


def main(names: list[str]) -> int:
    """0 where all that are asked for are here at the end, 1 where one is not, 2 for a name that there is not."""
    if unknown := [name for name in names if name not in WEIGHTS]:
        print(f"no weights are called {', '.join(unknown)}: there are {', '.join(WEIGHTS)}", file=sys.stderr)
        return 2
    missing = 0
    for name in names or [name for name, weights in WEIGHTS.items() if weights.by_default]:
        try:
            news = "fetched" if fetch(name) else "here already"
        except FetchError as error:
            print(f"{name}: {error}", file=sys.stderr)
            missing += 1
        except Exception as error:  # the others are fetched all the same
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            missing += 1
        else:
            print(f"{name}: {news}: {folder(name)} (licence: {WEIGHTS[name].licence})", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
