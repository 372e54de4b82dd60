"""Descriptions of Debian packages: what is searched, and pairs to learn from."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

#: The sample in the repository: 200 documents and 50 queries.
SAMPLE = Path(__file__).resolve().parents[2] / "cli" / "examples" / "debian-packages"

#: Of the packages whose synopsis is known, one in so many is held out.
HELD_OUT = 4

#: Words of a description that questions are made of.
BEGINNING = 50


@dataclass
class Query:
    """A question, and the ids of the documents that answer it."""

    text: str
    relevant: list[int]


@dataclass
class Packages:
    """Documents by id, and queries: one to learn from, or to be asked afterwards."""

    documents: list[str]
    train: list[Query]
    held_out: list[Query]

    @property
    def to_learn_from(self) -> list[int]:
        """Ids of the documents that no question of afterwards is about."""
        asked = {id for query in self.held_out for id in query.relevant}
        return [id for id in range(len(self.documents)) if id not in asked]


def read(folder: Path) -> Packages:
    """Reads ``documents.jsonl`` and ``queries.jsonl``, and splits the queries by id."""
    documents = [entry["text"] for entry in lines(folder / "documents.jsonl")]
    packages = Packages(documents, [], [])
    for entry in lines(folder / "queries.jsonl"):
        part = packages.train if entry["id"] % HELD_OUT else packages.held_out
        part.append(Query(entry["text"], entry["relevant"]))
    return packages


def lines(path: Path) -> list[dict]:
    """The objects of a file of JSON lines."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


class Pairs:
    """Questions and their documents, drawn at random, no document twice in a batch.

    A question is a package's synopsis, where that is known, or some words in a row of the
    beginning of its description, which are taken out of it now and then.
    """

    def __init__(self, packages: Packages, seed: int) -> None:
        self.random = random.Random(seed)
        self.documents = packages.documents
        self.ids = packages.to_learn_from
        self.synopses = {query.relevant[0]: query.text for query in packages.train}

    def batch(self, size: int) -> tuple[list[str], list[str]]:
        """As many pairs."""
        ids = self.random.sample(self.ids, min(size, len(self.ids)))
        pairs = [self._pair(id) for id in ids]
        return [question for question, _ in pairs], [document for _, document in pairs]

    def _pair(self, id: int) -> tuple[str, str]:
        if id in self.synopses and self.random.random() < 0.7:
            return self.synopses[id], self.documents[id]
        words = self.documents[id].split()
        length = min(self.random.randint(3, 10), max(1, len(words) // 2))
        # Farther behind they would be cut off where a text is longer than the encoder reads.
        start = self.random.randint(0, min(len(words), BEGINNING) - length)
        question = words[start : start + length]
        if self.random.random() < 0.3:
            words = words[:start] + words[start + length :]
        return " ".join(question), " ".join(words)


def ndcg(scores: Tensor, queries: list[Query], k: int = 10) -> float:
    """nDCG@k of the rankings by these scores, ``[queries, documents]``."""
    total = 0.0
    best = torch.topk(scores, min(k, scores.shape[1])).indices.tolist()
    for ranked, query in zip(best, queries):
        gain = sum(1 / math.log2(rank + 2) for rank, id in enumerate(ranked)
                   if id in query.relevant)
        ideal = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(query.relevant))))
        total += gain / ideal
    return total / len(queries)
