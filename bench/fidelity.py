#!/usr/bin/env python3
"""What each storage format does to rankings, on real data: nDCG@10, recall@10, the overlap of the
best ten and twenty with those of float64, Spearman's rank correlation, and errors of scores.

    fidelity.py --tool target/release/maxsim --data FOLDER --out fidelity.json

FOLDER has `documents.safetensors`, `queries.safetensors` (f16, packed, with `offsets`) and
`queries.jsonl` with relevant documents. The tool compresses and ranks; float64 is NumPy's, of the
embeddings as they are stored. No GPU is needed, and none is used. Needs NumPy and safetensors.
"""

import argparse
import datetime
import json
import pathlib
import platform
import subprocess
import tempfile

import numpy
from safetensors.numpy import load_file

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
DEPTH = 10


def exact_scores(queries, documents):
    """Scores in float64, `[queries, documents]`."""
    rows = documents["embeddings"].astype(numpy.float64)
    starts = documents["offsets"][:-1]
    assert (numpy.diff(documents["offsets"]) > 0).all(), "an empty document has no largest token"
    scores = []
    for first, end in zip(queries["offsets"], queries["offsets"][1:], strict=False):
        similar = queries["embeddings"][first:end].astype(numpy.float64) @ rows.T
        scores.append(numpy.maximum.reduceat(similar, starts, axis=1).sum(axis=0))
    return numpy.array(scores)


def ranks(scores):
    """Places of documents, the best 0; of equal scores the lower number first."""
    order = numpy.argsort(-scores, axis=1, kind="stable")
    places = numpy.empty_like(order)
    numpy.put_along_axis(places, order, numpy.arange(scores.shape[1])[None, :], axis=1)
    return order, places


def spearman(found, exact):
    """Rank correlation of each query's documents, the mean of all queries."""
    places = numpy.stack([ranks(found)[1], ranks(exact)[1]]).astype(numpy.float64)
    places -= places.mean(axis=2, keepdims=True)
    covariance = (places[0] * places[1]).sum(axis=1)
    return float((covariance / numpy.sqrt((places**2).sum(axis=2).prod(axis=0))).mean())


def overlap(found, exact, depth):
    """Share of the exact best documents that are among the best found, the mean of all queries."""
    best = zip(ranks(found)[0][:, :depth], ranks(exact)[0][:, :depth], strict=True)
    return float(numpy.mean([len(numpy.intersect1d(a, b)) / depth for a, b in best]))


def judged(order, relevant):
    """nDCG@10 and recall@10, of judgements that are 0 or 1, over the queries that have some."""
    ndcg, recall = [], []
    discounts = 1 / numpy.log2(numpy.arange(2, DEPTH + 2))
    for best, wanted in zip(order[:, :DEPTH], relevant, strict=True):
        if not wanted:
            continue
        is_relevant = numpy.isin(best, wanted)
        ideal = discounts[: min(len(wanted), DEPTH)].sum()
        ndcg.append((is_relevant * discounts[: len(best)]).sum() / ideal)
        recall.append(is_relevant.sum() / len(wanted))
    return float(numpy.mean(ndcg)), float(numpy.mean(recall))


def row(name, order, found, exact, relevant, bytes_per_token):
    """The figures of a format; `found` has a score of every document, or is None."""
    ndcg, recall = judged(order, relevant)
    figures = {
        "case": name,
        "ndcg_at_10": round(ndcg, 6),
        "recall_at_10": round(recall, 6),
        "bytes_per_token": round(bytes_per_token, 2),
    }
    places = -numpy.argsort(order, axis=1, kind="stable") if found is None else found
    figures["top_10_overlap"] = round(overlap(places, exact, 10), 6)
    figures["top_20_overlap"] = round(overlap(places, exact, 20), 6)
    if found is not None:
        errors = numpy.abs(found - exact) / numpy.abs(exact).clip(1e-9)
        figures["spearman"] = round(spearman(found, exact), 6)
        figures["mean_relative_error"] = float(f"{errors.mean():.3e}")
        figures["largest_relative_error"] = float(f"{errors.max():.3e}")
    return figures


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
    rows = [row("float64", ranks(exact)[0], exact, exact, relevant, 8 * dim)]
    for name, (of_documents, of_queries) in FORMATS.items():
        file = tool.compressed("documents", of_documents)
        query_file = tool.compressed("queries", of_queries)
        order, scores = tool.ranked(query_file, file, n_documents)
        found = numpy.empty_like(exact)
        numpy.put_along_axis(found, order, scores, axis=1)
        per_token = (file.stat().st_size - n_documents * 8) / n_tokens
        rows.append(row(name, order, found, exact, relevant, per_token))
        print(json.dumps(rows[-1]), flush=True)
    for name in SCREENS:
        file = tool.compressed("documents", FORMATS[name][0])
        sides = [tool.compressed(side, None) for side in ("queries", "documents")]
        order, _ = tool.ranked(*sides, 20, "--screen", file)
        # What is not shown stands behind, in any order.
        rest = [numpy.setdiff1d(numpy.arange(n_documents), best) for best in order]
        order = numpy.concatenate([order, numpy.array(rest)], axis=1)
        per_token = rows[1]["bytes_per_token"] + file.stat().st_size / n_tokens
        rows.append(row(f"{name}, then f16", order, None, exact, relevant, per_token))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", type=pathlib.Path, required=True, help="the program maxsim")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="embeddings and judgements")
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
