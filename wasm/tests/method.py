"""Prints shapes to type into the page about the method, with the rates that it has of each card."""

import json
import re
import sys

SHAPES = [
    ("f16", 1, 1024, 10_000, 1024, 128),
    ("bf16", 32, 32, 1024, 180, 96),
    ("f16", 1, 32, 1_000_000, 300, 128),
    ("f32", 4, 512, 64, 700, 768),
]


def main(page):
    with open(page, encoding="utf-8") as file:
        page = file.read()
    found = re.search(r'type="application/json" id="measured">(.*?)</script>', page, re.S)
    cards = json.loads(found.group(1))
    names = ["n_queries", "query_len", "n_documents", "document_len", "dim"]
    shapes = []
    for card, rates in cards.items():
        for element, *numbers in SHAPES:
            shapes.append({
                "card": card,
                "shape": {
                    "element": element,
                    **dict(zip(names, numbers, strict=True)),
                    "tflop_per_s": rates["tflop_per_s"]["tf32" if element == "f32" else "f16"],
                    "tb_per_s": rates["tb_per_s"],
                },
            })
    print(json.dumps(shapes))


main(sys.argv[1])
