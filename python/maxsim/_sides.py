"""What a call is given, in the caller's arrays: both sides, the pairing and options.

A side is a matrix of token rows with the rows of each item:

=========  ==================  ====================  =========
kind       data                first                 lengths
=========  ==================  ====================  =========
padded     ``[n, len, dim]``   none                  none or ``[n]``
packed     ``[rows, dim]``     offsets ``[n + 1]``   none
scattered  ``[rows, dim]``     starts ``[n]``        ``[n]``
=========  ==================  ====================  =========

and optionally a mask, one entry per row. Nothing here depends on the arrays' library.
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: Kinds of sides, as the compiled half numbers them.
PADDED, PACKED, SCATTERED, STRIDED, UNREAD = range(5)

#: Storage formats, as the compiled half numbers them.
FORMATS = {
    "float32": 0,
    "float16": 1,
    "bfloat16": 2,
    "int8": 3,
    "uint8": 4,
    "float8_e4m3fn": 5,
}

#: Kinds of pairings, as the compiled half numbers them.
CROSS, OWN, CANDIDATES, PAIRS = range(4)

#: Kinds of scales, as the compiled half numbers them.
NO_SCALES, F16_SCALES, F32_SCALES, TENSOR_SCALE, AFFINE_SCALES = range(5)


class Side(NamedTuple):
    """Tokens of one side."""

    data: Any
    mask: Any = None
    first: Any = None
    lengths: Any = None
    scales: Any = None
    mins: Any = None
    #: Factors of query tokens, a float32 for each row.
    weights: Any = None

    @property
    def kind(self) -> int:
        """How the rows of items are said."""
        if self.first is None:
            return PADDED
        return PACKED if self.lengths is None else SCATTERED

    @property
    def n_items(self) -> int:
        """Number of queries or documents."""
        if self.first is None:
            return int(self.data.shape[0]) if self.data.ndim else 0
        return int(self.first.shape[0]) - (1 if self.lengths is None else 0)


class Pairing(NamedTuple):
    """Which queries meet which documents."""

    kind: int = CROSS
    #: Candidates per query.
    k: int = 0
    q_ids: Any = None
    d_ids: Any = None

    def shape(self, q: Side, d: Side) -> tuple[int, ...]:
        """Shape of the scores."""
        if self.kind == CROSS:
            return (q.n_items, d.n_items)
        if self.kind == PAIRS:
            return (int(self.d_ids.shape[0]),)
        return (q.n_items, self.k)


class Options(NamedTuple):
    """What is computed, and how."""

    normalize: bool = False
    tf32: bool = False
    winners: bool = False
    token_scores: bool = False
    #: Entries of winners and token scores per pair, at least the longest query; -1 = that.
    max_q_len: int = -1
    #: Tokens of the longest document or more, of packed ones on a device; -1 = any number.
    max_d_len: int = -1
    #: Whether scores have the same bits with winners (or gradients) and without.
    consistent: bool = False


class Result(NamedTuple):
    """Scores with what else was asked for.

    ``winners`` and ``token_scores`` have one more axis than ``scores``: the query's tokens.
    """

    scores: Any
    #: Index of the winning document token (int32), -1 for none; None where not asked for.
    winners: Any = None
    #: Similarity of the winning token (float32); None where not asked for.
    token_scores: Any = None


def check(condition: bool, argument: str, expected: str, found: object) -> None:
    """Raises the ValueError that names an argument, what was expected and what was found."""
    if not condition:
        raise ValueError(f"{argument}: expected {expected}, found {found}")


def check_side(side: Side, name: str) -> None:
    """Checks shapes that do not depend on any value."""
    data = side.data
    rank = 3 if side.first is None else 2
    expected = "[n, len, dim]" if rank == 3 else "[rows, dim]"
    check(data.ndim == rank, name, expected, f"shape {tuple(data.shape)}")
    lower = name.lower()
    if side.mask is not None:
        want = tuple(data.shape[:-1])
        check(tuple(side.mask.shape) == want, f"{lower}_mask", f"shape {want}",
              tuple(side.mask.shape))
    if side.first is not None:
        argument = f"{lower}_offsets" if side.lengths is None else f"{lower}_starts"
        check(side.first.ndim == 1, argument, "one axis", tuple(side.first.shape))
        least = 1 if side.lengths is None else 0
        check(side.first.shape[0] >= least, argument, "number of items + 1 entries", "0 entries")
    if side.lengths is not None:
        want = (side.n_items if side.first is None else side.first.shape[0],)
        check(tuple(side.lengths.shape) == want, f"{lower}_lengths", f"shape {want}",
              tuple(side.lengths.shape))


def check_call(q: Side, d: Side, pairing: Pairing) -> None:
    """Checks that the sides of a call go together, as far as shapes say."""
    check_side(q, "Q")
    check_side(d, "D")
    check(q.data.shape[-1] == d.data.shape[-1], "D", f"dim {q.data.shape[-1]} like Q",
          f"dim {d.data.shape[-1]}")
    if pairing.kind == OWN:
        check(d.n_items == q.n_items * pairing.k, "D", f"{q.n_items} x {pairing.k} documents",
              f"{d.n_items} documents")
    if pairing.kind == CANDIDATES:
        want = (q.n_items, pairing.k)
        check(tuple(pairing.d_ids.shape) == want, "ids", f"shape {want}",
              tuple(pairing.d_ids.shape))
    if pairing.kind == PAIRS:
        check(pairing.q_ids.ndim == 1 and pairing.d_ids.ndim == 1, "q_ids and d_ids", "one axis",
              f"{pairing.q_ids.ndim} and {pairing.d_ids.ndim} axes")
        check(pairing.q_ids.shape[0] == pairing.d_ids.shape[0], "d_ids",
              f"{pairing.q_ids.shape[0]} entries as q_ids", f"{pairing.d_ids.shape[0]} entries")


def scale_kind(dtype: str, ndim: int, has_mins: bool) -> int:
    """Kind of scales, as the compiled half numbers it."""
    if has_mins:
        return AFFINE_SCALES
    if ndim == 0:
        return TENSOR_SCALE
    if dtype not in ("float16", "float32"):
        raise TypeError(f"scales: expected float16 or float32, found {dtype}")
    return F16_SCALES if dtype == "float16" else F32_SCALES
