"""Which token of a document each token of a query chose, and how well, to look at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from . import _maxsim
from ._sides import check
from ._lazy import is_tensor
from ._threads import get_num_threads


class Explanation:
    """How the tokens of a query and a document match: what :func:`explain` gives.

    A notebook shows it as the page that :meth:`html` makes.

    Attributes:
        score: the pair's score.
        winners: for each token of the query the number of the document's token that it chose, or
            None in a document without tokens.
        token_scores: for each token of the query how similar these two are.
        similarities: float32 ``[query tokens, document tokens]``, numpy.
    """

    def __init__(self, found: _maxsim.Explanation, shape: tuple[int, int]) -> None:
        import numpy

        self._found = found
        self.score = found.score
        matches = found.matches()
        self.winners = [None if winner < 0 else winner for winner, _ in matches]
        self.token_scores = [similarity for _, similarity in matches]
        self.similarities = numpy.empty(shape, numpy.float32)
        found.similarities((self.similarities.ctypes.data, self.similarities.size))

    def html(self) -> str:
        """A page that opens from disk: press a token to see what is similar to it."""
        return self._found.html()

    def svg(self) -> str:
        """The heat map as SVG: above the image, or query tokens by document tokens."""
        return self._found.svg()

    def text(self) -> str:
        """Lines for a terminal."""
        return self._found.text()

    def json(self) -> str:
        """One JSON object, with all similarities."""
        return self._found.json()

    def _repr_html_(self) -> str:
        from html import escape

        page = escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'

    def __repr__(self) -> str:
        n, m = self.similarities.shape
        return f"Explanation(score={self.score}, {n} query tokens, {m} document tokens)"


def explain(
    query: Any, document: Any, *, query_words: Sequence[str] | None = None,
    document_words: Sequence[str] | None = None, normalize: bool = False,
    image: str | os.PathLike[str] | bytes | None = None, grid: tuple[int, int] | None = None,
    first_patch: int = 0,
) -> Explanation:
    """Shows which token of a document each token of a query chose, and how well.

    Args:
        query, document: ``[tokens, dim]``: tensors or arrays, all of whose rows are tokens. They
            are copied to the host as float32, and compared there.
        query_words, document_words: what each token stands for, such as
            ``tokenizer.convert_ids_to_tokens(ids)``.
        normalize: divide every row by its length.
        image: the page whose patches are tokens of the document: a PNG, JPEG, WebP or GIF file, or
            its bytes.
        grid: patches of the image across and down, line by line from the top left.
        first_patch: the number of the token that is the first patch.

    Raises:
        ValueError: sizes that do not agree; a NaN; an image without a grid; a grid of more patches
            than there are tokens.
    """
    check((image is None) == (grid is None), "grid", "one with an image, and none without",
          grid)
    query, document = _rows(query, "query"), _rows(document, "document")
    (n, dim), (m, other) = query.shape, document.shape
    check(dim == other, "document", f"tokens of dim {dim}, as the query's", other)
    picture = None
    if image is not None and grid is not None:
        if not isinstance(image, bytes):
            with open(image, "rb") as file:
                image = file.read()
        picture = (image, *map(int, grid), int(first_patch))
    words = tuple(None if words is None else list(words)
                  for words in (query_words, document_words))
    sides = [(rows.ctypes.data, rows.size) for rows in (query, document)]
    found = _maxsim.Explanation(get_num_threads(), (*sides, dim, normalize), words, picture)
    return Explanation(found, (n, m))


def _rows(x: Any, name: str) -> Any:
    """Rows as float32 in numpy."""
    import numpy

    if is_tensor(x):
        x = x.detach().float().cpu().numpy()
    elif not isinstance(x, numpy.ndarray) and hasattr(x, "__dlpack__"):
        x = numpy.from_dlpack(x)
    rows = numpy.ascontiguousarray(x, dtype=numpy.float32)
    check(rows.ndim == 2, name, "[tokens, dim]", f"shape {rows.shape}")
    return rows
