#!/usr/bin/env python3
"""Makes this sample out of the full set: make_sample.py FULL_SET_FOLDER [OUTPUT_FOLDER]

The full set has 250 queries and 1000 documents, a query's relevant document having the query's
own index, and reference.json with each query's ten best documents. The sample keeps the first
50 queries, their relevant documents under the same ids, and as distractors the documents that
rank highest for these queries: the hard ones, so that the ranking is worth judging.
Needs nothing but Python.
"""

import json
import pathlib
import struct
import sys

N_QUERIES = 50
N_DOCUMENTS = 200


def main():
    source = pathlib.Path(sys.argv[1])
    target = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent
    documents = chosen_documents(json.loads((source / "reference.json").read_text()))
    queries = list(range(N_QUERIES))
    for name, ids in [("queries", queries), ("documents", documents)]:
        write_items(
            target / f"{name}.safetensors", *read_items(source / f"{name}.safetensors"), ids
        )
        lines = [json.loads(line) for line in (source / f"{name}.jsonl").read_text().splitlines()]
        by_id = {line["id"]: line for line in lines}
        renumbered = ({**by_id[old], "id": new} for new, old in enumerate(ids))
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in renumbered)
        (target / f"{name}.jsonl").write_text(text, encoding="utf-8")


def chosen_documents(reference):
    """The relevant documents, then by rank and query those that rank highest beside them."""
    chosen = list(range(N_QUERIES))
    for rank in range(10):
        for query in range(N_QUERIES):
            document = reference["top10"][query]["documents"][rank]
            if document not in chosen and len(chosen) < N_DOCUMENTS:
                chosen.append(document)
    assert len(chosen) == N_DOCUMENTS
    return chosen


def read_items(path):
    """Element type, dim, and the bytes of each item, of `embeddings` with `offsets`."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_bytes])
    tensors = {
        name: data[
            8 + header_bytes + info["data_offsets"][0] : 8 + header_bytes + info["data_offsets"][1]
        ]
        for name, info in header.items()
        if name != "__metadata__"
    }
    rows, dim = header["embeddings"]["shape"]
    row_bytes = len(tensors["embeddings"]) // rows
    offsets = struct.unpack(f"<{len(tensors['offsets']) // 8}q", tensors["offsets"])
    items = [
        tensors["embeddings"][start * row_bytes : end * row_bytes]
        for start, end in zip(offsets, offsets[1:])
    ]
    return header["embeddings"]["dtype"], dim, row_bytes, items


def write_items(path, dtype, dim, row_bytes, items, ids):
    embeddings = b"".join(items[i] for i in ids)
    offsets = [0]
    for i in ids:
        offsets.append(offsets[-1] + len(items[i]) // row_bytes)
    offsets = struct.pack(f"<{len(offsets)}q", *offsets)
    end = len(offsets) + len(embeddings)
    header = {
        "offsets": {"dtype": "I64", "shape": [len(ids) + 1], "data_offsets": [0, len(offsets)]},
        "embeddings": {
            "dtype": dtype,
            "shape": [len(embeddings) // row_bytes, dim],
            "data_offsets": [len(offsets), end],
        },
    }
    header = json.dumps(header, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + offsets + embeddings)


main()
