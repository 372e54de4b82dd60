"""Documents that are searched again and again."""

from __future__ import annotations

from typing import Any

from ._sides import CROSS, Options, Pairing, Side, check, check_call
from ._lazy import is_tensor
from .quantize import Quantized, quantize
from .scoring import agree, library, side


class Corpus:
    """Documents in memory, as elements or compressed, for :func:`search` and :func:`maxsim`.

    The tensors are kept, not copied (a list of documents is packed once, and compression makes
    codes); who writes to them changes the corpus.

    Args:
        D: documents ``[Nd, Ld, dim]``, a list of ``[len, dim]``, rows ``[rows, dim]`` with
            ``offsets``, or :class:`Quantized` tokens.
        mask, lengths, offsets: which rows are tokens, as in :func:`maxsim`.
        format: None to keep the elements; "int8", "int8-affine" or "fp8" to keep codes in their
            place (:func:`quantize`).
        normalize: searches divide every row by its length: cosine similarities. Rows of codes are
            divided before they are compressed, and queries by the search.
        exact: with codes, keep a copy of the elements, too: :func:`search` then scans the codes,
            re-scores what may be among the best, and says of every place whether it is proven to
            be that of the exact ranking. The copy is where the documents are; on a GPU it is not
            in torch's memory, and searches wait. Codes of float32 documents are int8 or fp8.
        streamed: leave the documents, tensors in host memory that are padded or packed, where they
            are, and copy them to the queries' device a piece at a time, each search anew. Memory
            that is page-locked (``D.pin_memory()``) is copied at the link's rate, other memory by
            way of a page-locked copy of each piece.
        piece_bytes: of a streamed corpus, bytes of rows that are copied at once; a GPU holds up to
            four pieces.

    Raises:
        ValueError, TypeError: as :func:`maxsim` and :func:`quantize`.
    """

    def __init__(
        self, D: Any, *, mask: Any = None, lengths: Any = None, offsets: Any = None,
        format: str | None = None, normalize: bool = False, exact: bool = False,
        streamed: bool = False, piece_bytes: int = 128 << 20,
    ) -> None:
        self._lib = library(D)
        check(not (streamed and exact), "streamed", "False of an exact corpus", streamed)
        check(piece_bytes > 0, "piece_bytes", "1 or more", piece_bytes)
        if isinstance(D, Quantized):
            check(format is None or format == D.format, "format", D.format, format)
            check(not normalize, "normalize", "False for codes", normalize)
            found, format = D.as_side(mask, offsets, lengths), D.format
        else:
            found = side(self._lib, D, "D", mask, lengths, offsets)
        check_call(found, found, Pairing(CROSS))
        #: Whether searches normalise rows: those of codes were, before they were compressed.
        self.normalize = normalize
        #: Storage format: an element type, "int8", "int8-affine" or "fp8".
        self.format = format or str(found.data.dtype).split(".")[-1]
        check(not exact or format is not None and found.scales is None, "exact",
              "False without a format, and of codes", exact)
        self._screen: Any = None
        if format is not None and found.scales is None:
            data = self._lib.unit(found.data) if normalize else found.data
            codes = quantize(data, format, mask=found.mask, offsets=found.first,
                             lengths=found.lengths)
            if exact:
                self._screen = self._lib.screen(found._replace(data=data), codes)
                self._element = data[:0]  # its type alone
            found = codes.as_side(None, None, None)
        self._side = found
        #: Bytes of rows that a search copies to the queries' device at once, of documents that
        #: stay in host memory; None of documents that are where queries must be.
        self.piece_bytes = piece_bytes if streamed else None
        if streamed:
            check(is_tensor(found.data), "streamed",
                  "False of arrays that are not torch tensors (torch.from_numpy makes one)", True)
            from ._backends import streamed as _streamed

            _streamed.check_documents(found)

    def __len__(self) -> int:
        """Number of documents."""
        return self._side.n_items

    def __repr__(self) -> str:
        data = self._side.data
        return f"Corpus({len(self)} documents, {tuple(data.shape)} {self.format})"

    @property
    def arrays(self) -> Any:
        """The array that says which library this is of."""
        return self._side.data

    @property
    def nbytes(self) -> int:
        """Bytes that rows, scales and lists take."""
        return sum(int(x.nbytes) for x in self._side if x is not None)

    def as_side(self, mask: Any, first: Any, lengths: Any) -> Side:
        """The documents as one side of a call, which may mask others but not have other items."""
        check(first is None and lengths is None, "D", "no lengths or offsets beside a corpus",
              "some")
        return self._side if mask is None else self._side._replace(mask=mask)

    def ranked_by(self, lib: Any, q: Side, k: int, options: Options) -> Any:
        """Scores, ids and counts of the best documents of checked queries."""
        if options.normalize and self.normalize and self._side.scales is not None:
            q, options = self._divided(lib, q), options._replace(normalize=False)
        if self.piece_bytes is not None:
            check_call(q, self._side, Pairing(CROSS))
            if self._side.scales is not None:
                q, _ = self._meet(lib, q, self._side)
            from ._backends import streamed as _streamed

            return _streamed.topk(self._side, q, min(k, len(self)), options, self.piece_bytes,
                                  lambda piece: self._meet(lib, q, piece))
        q, d = self._meet(lib, q, self._side)
        check_call(q, d, Pairing(CROSS))
        return lib.topk(q, d, min(k, d.n_items), options)

    @property
    def is_exact(self) -> bool:
        """Whether elements are kept beside codes, to prove the places of a search."""
        return self._screen is not None

    def proven_by(self, lib: Any, q: Side, k: int, n_candidates: int, is_exact: bool) -> Any:
        """Scores, ids, counts, proofs and numbers of re-scored documents of checked queries."""
        check_call(q, self._side, Pairing(CROSS))
        if self.normalize:
            q = self._divided(lib, q)
        q = q._replace(data=lib.as_elements(q.data, self._element))
        return lib.search_exact(self._screen, q, min(k, len(self)), n_candidates, is_exact)

    @staticmethod
    def _divided(lib: Any, q: Side) -> Side:
        """Queries whose rows are of length 1."""
        check(q.scales is None, "Q", "elements, which a corpus of normalised rows divides", "codes")
        return q._replace(data=lib.unit(q.data))

    def _meet(self, lib: Any, q: Side, d: Side) -> tuple[Side, Side]:
        """Queries in the format that some of these documents are scored with, and these."""
        if d.scales is None or q.scales is not None:
            return agree(lib, q, d)
        if self.format == "int8-affine":
            narrow = str(q.data.dtype).split(".")[-1] != "float32"
            return (q if narrow else q._replace(data=lib.half(q.data))), d
        codes = quantize(q.data, self.format, scales="float32", mask=q.mask, offsets=q.first,
                         lengths=q.lengths)
        return codes.as_side(None, None, None), d
