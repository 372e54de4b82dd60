"""Compresses, ranks, and writes the record."""

import argparse
import datetime
import json
import pathlib
import platform
import subprocess
import tempfile

import numpy
from safetensors.numpy import load_file

from . import __doc__ as about
from .measures import exact_scores, ranks, row

#: Formats by the name of their row: how documents, and queries, are compressed.
FORMATS = {
    "f16": (None, None),
    "int8": (["--format", "int8"], ["--format", "int8"]),
    "int8-affine": (["--format", "int8-affine"], ["--format", "int8"]),
    "fp8": (["--format", "fp8"], ["--format", "fp8"]),
    "plaid, 4 bits": (["--format", "plaid", "--nbits", "4"], None),
    "plaid, 2 bits": (["--format", "plaid", "--nbits", "2"], None),
    "plaid, 1 bit": (["--format", "plaid", "--nbits", "1"], None),
}
#: Formats that find the best hundred documents, which are then scored with the f16 rows.
SCREENS = ("int8", "int8-affine", "fp8")


class Tool:
    """The command, and a folder for its files."""

    def __init__(self, program, data, folder):
        self.program, self.data, self.folder = program, data, folder

    def run(self, *arguments):
        subprocess.run([self.program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    def compressed(self, side, options):
        """A side's file, compressed where there are options."""
        source = self.data / f"{side}.safetensors"
        if options is None:
            return source
        made = self.folder / ("-".join([side, *(x.strip("-") for x in options)]) + ".safetensors")
        if not made.is_file():
            self.run("quantize", "--input", source, "--output", made, *options)
        return made

    def ranked(self, queries, documents, k, *options):
        """Documents of each query, the best first, and their scores."""
        out = self.folder / "ranking.json"
        self.run(
            "rank", "--device", "cpu", "--top-k", k, "--format", "json", "--output", out,
            "--queries", queries, "--documents", documents, *options,
        )  # fmt: skip
        found = json.loads(out.read_text())["queries"]
        return [numpy.array([query[key] for query in found]) for key in ("documents", "scores")]


def measure(tool, data):
    """The rows of all formats."""
    queries, documents = (
        load_file(data / f"{side}.safetensors") for side in ("queries", "documents")
    )
    lines = (data / "queries.jsonl").read_text().splitlines()
    relevant = [json.loads(line)["relevant"] for line in lines]
    exact = exact_scores(queries, documents)
    n_documents, (n_tokens, dim) = exact.shape[1], documents["embeddings"].shape

    def bytes_per_token(file):
        """Of a file of documents, less where each of these begins: 8 bytes."""
        return (file.stat().st_size - n_documents * 8) / n_tokens

    rows = [row("float64", ranks(exact)[0], exact, exact, relevant, 8 * dim)]
    for name, (of_documents, of_queries) in FORMATS.items():
        file = tool.compressed("documents", of_documents)
        query_file = tool.compressed("queries", of_queries)
        order, scores = tool.ranked(query_file, file, n_documents)
        # A document that no ranking has would show as a number that is none.
        found = numpy.full_like(exact, numpy.nan)
        numpy.put_along_axis(found, order, scores, axis=1)
        rows.append(row(name, order, found, exact, relevant, bytes_per_token(file)))
        print(json.dumps(rows[-1]), flush=True)
    for name in SCREENS:
        file = tool.compressed("documents", FORMATS[name][0])
        sides = [tool.compressed(side, None) for side in ("queries", "documents")]
        order, _ = tool.ranked(*sides, 20, "--screen", file)
        # What is not shown stands behind, in any order.
        rest = [numpy.setdiff1d(numpy.arange(n_documents), best) for best in order]
        order = numpy.concatenate([order, numpy.array(rest)], axis=1)
        both = bytes_per_token(sides[1]) + bytes_per_token(file)
        rows.append(row(f"{name}, then f16", order, None, exact, relevant, both))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--tool", type=pathlib.Path, required=True, help="the program maxsim")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="embeddings, judgements")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the record")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(args.tool.resolve(), args.data.resolve(), pathlib.Path(folder))
        rows = measure(tool, tool.data)
    record = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "protocol": "documents and queries compressed and ranked by the tool on the CPU; beside "
        "float64 of the f16 embeddings; the same bits on every machine but for the last ones of "
        "f32 sums",
        "data": f"{args.data.name}: queries and relevant documents of its queries.jsonl",
        "versions": {"numpy": numpy.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
