"""Calls with lists: lengths, offsets, starts and ids, of tokens in any format."""

from __future__ import annotations

import torch

import maxsim
from cases import case

LENGTHS = ([7, 0, 3], [11, 1, 0, 4, 6])

#: Formats of queries and documents, and scales.
FORMATS = [
    ("int8", "int8", None), ("int8", "int8", "float32"), (None, "int8-affine", None),
    ("fp8", "fp8", None), ("fp8", "fp8", "tensor"),
]


def packed(x, lengths):
    """Rows of items, one behind the other, and their offsets."""
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    return torch.cat([item[:n] for item, n in zip(x, lengths)]), offsets


def calls(kind, device):
    """Calls with lists: name, tensors, lists by name, other arguments, and the function."""
    (Q, D), (q_lengths, d_lengths) = case(kind, device=device), LENGTHS
    q_rows, q_offsets = packed(Q, q_lengths)
    d_rows, d_offsets = packed(D, d_lengths)
    lists = dict(q_lengths=torch.tensor(q_lengths), d_lengths=torch.tensor(d_lengths))
    mask = torch.rand(5, 11, device=device) > 0.4
    q_mask = torch.rand(3, 7, device=device) > 0.3
    ids = dict(q_ids=torch.tensor([2, 0, 0, 1]), d_ids=torch.tensor([4, 4, 1, 2]))
    some = torch.tensor([[4, 0], [0, 0], [3, 1]])
    of_rows = dict(q_offsets=q_offsets, d_offsets=d_offsets)
    bounds = dict(max_q_len=8, max_d_len=11)
    starts = dict(q_starts=q_offsets[:-1], q_lengths=torch.tensor(q_lengths),
                  d_starts=d_offsets[:-1] // 2, d_lengths=torch.tensor(d_lengths))
    return [
        ("lengths", (Q, D), lists, {}, maxsim.maxsim),
        ("masks and lengths", (Q, D), lists, dict(q_mask=q_mask, d_mask=mask), maxsim.maxsim),
        ("lengths of documents", (Q, D), dict(d_lengths=lists["d_lengths"]), {}, maxsim.maxsim),
        ("lengths of queries", (Q, D), dict(q_lengths=lists["q_lengths"]), {}, maxsim.maxsim),
        ("pairs", (Q, D), ids, dict(d_mask=mask), maxsim.pairs),
        ("pairs and lengths", (Q, D), {**ids, **lists}, {}, maxsim.pairs),
        ("candidates", (Q, D), dict(ids=some), {}, maxsim.candidates),
        ("candidates and lengths", (Q, D), {**dict(ids=some), **lists}, dict(d_mask=mask),
         maxsim.candidates),
        ("packed", (q_rows, d_rows), of_rows, bounds, maxsim.packed),
        ("packed documents", (Q, d_rows), dict(q_offsets=None, d_offsets=d_offsets), bounds,
         maxsim.packed),
        ("packed pairs", (q_rows, d_rows), {**of_rows, **ids}, bounds, maxsim.packed),
        ("scattered", (q_rows, d_rows), starts, bounds, maxsim.scattered),
    ]


def compressed(x, format, scales=None):
    """Tokens as codes, or as they are; lists are given to the call."""
    if format is None:
        return x
    offsets = torch.tensor([0, len(x)]) if x.ndim == 2 else None
    found = maxsim.quantize(x, format, scales=scales, offsets=offsets)
    return maxsim.Quantized(found.codes, found.scales, found.mins, format)
