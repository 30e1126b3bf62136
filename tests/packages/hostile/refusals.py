"""A process that goes over packages as a load does, with little memory, and says of each why it is refused.

``python -m tests.packages.hostile.refusals DIRECTORY KEYS``: a line of JSON for each package in DIRECTORY: its name and
the refusal, null if there is none.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from calculet_trio.cli.model_text import open_text
from calculet_trio.errors import CalculetError
from calculet_trio.packages.acceptance import accept
from calculet_trio.packages.store import Store
from calculet_trio.packages.trust import Trust

MEMORY_BYTES = 768 << 20
"""Beyond what the process has when it has begun; a JSON file of 32 MiB, the largest that is read, takes most of it."""


def main() -> None:
    directory, keys = map(Path, sys.argv[1:])
    store, trust = Store(directory.parent / "store"), Trust.load(keys, [])
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard_bytes = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard_bytes))
    for package in sorted(path for path in directory.iterdir() if path.suffix != ".elsewhere"):
        sys.stdout.write(json.dumps([package.name, refusal(store, package, trust)]) + "\n")
        sys.stdout.flush()


def refusal(store: Store, package: Path, trust: Trust) -> str | None:
    """Why it is not served."""
    try:
        text = open_text(package, accept(store, package, trust, thorough=True).manifest)
    except CalculetError as error:
        return str(error)
    if text.template is not None:
        text.template.close()
    return None


if __name__ == "__main__":
    main()
