"""Reranks with sentence-transformers: candidates by one vector a text, order by late interaction.

    python python/examples/rerank.py
    python python/examples/rerank.py --device cuda --candidates 100 --repeat 5

The sample in the repository has token embeddings of 200 descriptions of Debian packages and 50
synopses. Means of tokens find candidates (``util.semantic_search``), ``util.maxsim`` orders them,
first in sentence-transformers' own code, then with ``maxsim.integrations`` enabled, in the same
program. Needs sentence-transformers 6 and safetensors.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sentence_transformers import util
from torch import Tensor

import packages
from maxsim.integrations import sentence_transformers as integration


def token_embeddings(path: Path, device: str) -> list[Tensor]:
    """One matrix ``[tokens, dim]`` per text, of packed rows and where each text begins."""
    stored = load_file(path)
    rows, offsets = stored["embeddings"].float().to(device), stored["offsets"].tolist()
    return [rows[begin:end] for begin, end in zip(offsets, offsets[1:])]


def rerank(
    queries: list[Tensor], documents: list[Tensor], found: list[list[dict[str, Any]]]
) -> Tensor:
    """Scores ``[queries, documents]``; what is no candidate of a query has -inf."""
    scores = torch.full((len(queries), len(documents)), float("-inf"))
    for query, (tokens, hits) in enumerate(zip(queries, found)):
        ids = [hit["corpus_id"] for hit in hits]
        scores[query, ids] = util.maxsim([tokens], [documents[id] for id in ids])[0].cpu()
    return scores


def main() -> None:
    """Searches, reranks both ways, and says what it was worth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=packages.SAMPLE)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many is told")
    options = parser.parse_args()
    texts = packages.lines(options.data / "queries.jsonl")
    questions = [packages.Query(entry["text"], entry["relevant"]) for entry in texts]
    queries = token_embeddings(options.data / "queries.safetensors", options.device)
    documents = token_embeddings(options.data / "documents.safetensors", options.device)

    means = [torch.stack([x.mean(0) for x in side]) for side in (queries, documents)]
    found = util.semantic_search(*means, top_k=options.candidates)
    first = torch.full((len(queries), len(documents)), float("-inf"))
    for query, hits in enumerate(found):
        for hit in hits:
            first[query, hit["corpus_id"]] = hit["score"]
    print(f"{len(queries)} queries, {len(documents)} documents, {options.candidates} candidates")
    print(f"one vector a text            nDCG@10 {packages.ndcg(first, questions):.4f}")

    def run(name: str) -> Tensor:
        seconds = []
        for _ in range(options.repeat):
            began = time.perf_counter()
            scores = rerank(queries, documents, found)
            seconds.append(time.perf_counter() - began)
        print(f"reranked, {name:<17}  nDCG@10 {packages.ndcg(scores, questions):.4f}"
              f"  {min(seconds) * 1e3:8.1f} ms")
        return scores

    theirs = run("their own code")
    with integration.enable():
        ours = run("maxsim enabled")
    difference = (ours - theirs)[theirs.isfinite()].abs().max().item()
    print(f"largest difference of a score {difference:.1e}")


if __name__ == "__main__":
    main()
