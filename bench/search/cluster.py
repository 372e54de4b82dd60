"""Measures a query on a Ballista cluster of two executors on this machine's CPU.

    (cd datafusion && cargo build --release --locked --all-features --bins --example measure)
    python3 -m bench.search.cluster --out docs/measured/cpu-2core/search.json

From the repository's root, on an idle machine of two cores. Needs 5.1 GB of disk, and as much
memory for it to stay in the page cache; no PyTorch.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from python import program, rows

from . import FOLDER

DOCUMENTS = 100_000
CASE = (
    "Ballista, 2 executors, 2 cores, CPU engine, 100 000 documents of 100 × 128 f32 (5.1 GB, 8 "
    "Parquet files, uncompressed, PLAIN), query of 32"
)
GOAL = rows.Goal(
    "same ranking as one process; ≤ 15 % over two processes that read the same files with the same "
    "reader and call `maxsim`; median of 5 after a warm-up",
    (("x_two_processes", "<=", 1.15),),
)
PEER = "two processes with the same reader"
PROTOCOL = (
    "both in turns, median of 5 after a warm-up, files in the page cache, one thread of the engine "
    "in each process; times from the query to ids and scores in the client; every ranking is "
    "compared with that of one process, to the bit"
)


def row(found):
    """The row of what the program printed."""
    ours, peer = (statistics.median(found[name]) for name in ("cluster_ms", "peer_ms"))
    return rows.row(CASE, GOAL, ours, "ms", {PEER: peer}, x_two_processes=ours / peer, rounds=found)


def measure(measuring, folder, documents, n_rounds):
    """What the program prints of files in a folder, which it writes first."""
    subprocess.run([measuring, "write", folder, "--documents", str(documents)], check=True)
    words = [measuring, "run", folder, "--rounds", str(n_rounds)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main(words=None):
    """Measures the row and adds it to a record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root = FOLDER.parents[1]
    built = root / "target" / "datafusion" / "release" / "examples" / "measure"
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/search.json"))
    parser.add_argument("--program", type=pathlib.Path, default=built, help="the example, built")
    parser.add_argument("--folder", help="where files are made, on a disk; the system's by default")
    parser.add_argument("--tiny", action="store_true", help="few documents, to try the script")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        documents, n_rounds = (800, 1) if args.tiny else (DOCUMENTS, 5)
        found = row(measure(args.program, folder, documents, n_rounds))
    record = rows.Record(args.out, ["cluster"], protocol=PROTOCOL)
    now = datetime.datetime.now(datetime.timezone.utc)
    card = program.cpu_name()
    record.about({"date": now.strftime("%Y-%m-%d %H:%M UTC"), "card": card})
    record.take("cluster", card, [found])
    print(rows.line(found))
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
