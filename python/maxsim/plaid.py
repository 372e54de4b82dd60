"""Residual-compressed documents, as ColBERTv2 and PLAID store them."""

from __future__ import annotations

import math
from typing import Any, Callable

from . import _maxsim
from ._sides import CROSS, FORMATS, Options, Pairing, Result, Side, check, check_side
from ._threads import get_num_threads
from .scoring import _items, library, side

#: Orders of the bits of buckets in a byte.
BIT_ORDERS = ("colbert", "little-endian")


class PlaidIndex:
    """Documents as a centroid and a bucket of 1, 2, 4 or 8 bits per element.

    A token is ``centroids[code] + bucket_weights[bucket]``, divided by its length where
    ``normalize``. Two orders of bits exist: "colbert" (bit ``b`` of the byte's ``i``-th bucket is
    bit ``7 - (i * nbits + b)``), which ColBERT, fast-plaid and next-plaid write, and
    "little-endian" (bit ``i * nbits + b``), which late-interaction-kernels reads.

    Args:
        codes: integers ``[rows]``, or ``[Nd, Ld]`` with ``lengths``.
        residuals: uint8 ``[rows, ceil(dim * nbits / 8)]``, or ``[Nd, Ld, …]``.
        centroids: ``[n, dim]``, float32, float16 or bfloat16.
        bucket_weights: ``[2 ** nbits]``.
        nbits: 1, 2, 4 or 8.
        bit_order: "colbert" or "little-endian"; never guessed.
        offsets, lengths, mask: which rows are the documents'.
        normalize: divide decoded tokens by their lengths.

    Where codes and residuals are on a GPU, the index is there: residuals are arranged as GPUs
    decode them, by the GPU, and nothing but lists is copied to the host. It takes queries there,
    float16 or bfloat16. Other arrays are copied to memory of the index.

    Raises ValueError for what does not fit, codes that are no centroids (which is waited for), and
    other bit orders.
    """

    def __init__(
        self, codes: Any, residuals: Any, centroids: Any, bucket_weights: Any, nbits: int, *,
        bit_order: str, offsets: Any = None, lengths: Any = None, mask: Any = None,
        normalize: bool = True, bucket_cutoffs: Any = None,
    ) -> None:
        check(bit_order in BIT_ORDERS, "bit_order", "colbert or little-endian", bit_order)
        check(nbits in (1, 2, 4, 8), "nbits", "1, 2, 4 or 8", nbits)
        place = _place(codes, residuals)
        lib = library(*(place(x) for x in (codes, residuals, centroids, bucket_weights)))
        codes = lib.indices(place(codes), "codes")
        codes = codes.astype("int64") if hasattr(codes, "astype") else codes.long()
        residuals, centroids = place(residuals), place(centroids)
        centroids = lib.tokens(centroids, "centroids")
        check(centroids.ndim == 2, "centroids", "[n, dim]", f"shape {tuple(centroids.shape)}")
        dim = int(centroids.shape[1])
        want = (*codes.shape, math.ceil(dim * nbits / 8))
        check(tuple(residuals.shape) == want, "residuals", f"shape {want}",
              tuple(residuals.shape))
        if str(residuals.dtype).split(".")[-1] != "uint8":
            raise TypeError(f"residuals: expected uint8, found {residuals.dtype}")
        # The layout is that of rows of codes: one byte each stands for them.
        rows = codes[..., None]
        items = Side(
            lib.as_elements(rows, residuals),
            None if mask is None else lib.mask(place(mask), "mask"),
            None if offsets is None else lib.indices(_on_host(offsets), "offsets"),
            None if lengths is None else lib.indices(_on_host(lengths), "lengths"))
        check_side(items, "D")
        weights, cutoffs = (_floats(None if x is None else place(x))
                            for x in (bucket_weights, bucket_cutoffs))
        check(tuple(weights.shape) == (2**nbits,), "bucket_weights", f"shape {(2**nbits,)}",
              tuple(weights.shape))
        if cutoffs is not None:
            check(tuple(cutoffs.shape) == (2**nbits - 1,), "bucket_cutoffs",
                  f"shape {(2**nbits - 1,)}", tuple(cutoffs.shape))
        if place is not _on_host:
            self._index = _on_gpu(items, codes, residuals, centroids, weights, nbits,
                                  bit_order == "little-endian", normalize)
            return
        (layout, matrix), kept = lib.describe(items)
        centroids, codes, residuals = (_dense(x) for x in (centroids, codes, residuals))
        tables = (nbits, dim, lib.memory(centroids),
                  FORMATS[str(centroids.dtype).split(".")[-1]], int(centroids.shape[0]),
                  lib.memory(weights), None if cutoffs is None else lib.memory(cutoffs), normalize)
        numbers = ((*layout[:4], dim, *layout[5:]), matrix)
        self._index = _maxsim.Plaid(
            get_num_threads(), tables, numbers, lib.memory(codes), lib.memory(residuals),
            bit_order == "little-endian")
        del kept

    @classmethod
    def train(
        cls, D: Any, nbits: int = 4, *, n_centroids: int | None = None, n_iterations: int = 4,
        normalize: bool = True, seed: int = 42, bit_order: str = "colbert", mask: Any = None,
        lengths: Any = None, offsets: Any = None,
    ) -> PlaidIndex:
        """Finds centroids and buckets for documents by k-means, and encodes these.

        Args:
            D: documents as in :func:`maxsim`, in host memory.
            n_centroids: by default the power of two at or below ``16 * sqrt(tokens)``.

        Raises:
            ValueError: no valid token, or one that is not finite.
        """
        check(bit_order in BIT_ORDERS, "bit_order", "colbert or little-endian", bit_order)
        lib = library(D if isinstance(D, list) else _on_host(D))
        documents = side(lib, D if isinstance(D, list) else _on_host(D), "D", mask, lengths,
                         offsets)
        check_side(documents, "D")
        numbers, kept = lib.describe(documents)
        index = cls.__new__(cls)
        index._index = _maxsim.Plaid.train(
            get_num_threads(), numbers,
            (nbits, n_centroids, n_iterations, normalize, seed, bit_order == "little-endian"))
        del kept
        return index

    def __len__(self) -> int:
        """Number of documents."""
        return int(self._index.sizes()[1])

    def __repr__(self) -> str:
        rows, n, dim, nbits, n_centroids, _ = self._index.sizes()
        return (f"PlaidIndex({n} documents, {rows} tokens of dim {dim}, {n_centroids} centroids, "
                f"{nbits} bits)")

    @property
    def dim(self) -> int:
        """Elements per token."""
        return int(self._index.sizes()[2])

    @property
    def nbytes(self) -> int:
        """Bytes that the tokens take, without the tables."""
        return int(self._index.size_bytes())

    def parts(self) -> dict[str, Any]:
        """Copies of codes, residuals, centroids and bucket weights, as numpy arrays."""
        import numpy as np

        from ._backends.numpy import memory

        rows, _, dim, nbits, n_centroids, row_bytes = self._index.sizes()
        if not isinstance(self._index, _maxsim.Plaid):
            return {name: part.cpu().numpy() for name, part in self._index.parts().items()}
        found = {
            "codes": np.empty(rows, np.int32),
            "residuals": np.empty((rows, row_bytes), np.uint8),
            "centroids": np.empty((n_centroids, dim), np.float32),
            "bucket_weights": np.empty(2**nbits, np.float32),
        }
        self._index.parts(*(memory(x) for x in found.values()))
        return found

    def decode(self) -> Any:
        """The tokens, as a numpy array ``[rows, dim]``."""
        import numpy as np

        from ._backends.numpy import memory

        if not isinstance(self._index, _maxsim.Plaid):
            return self._index.decode().cpu().numpy()
        found = np.empty((self._index.sizes()[0], self.dim), np.float32)
        self._index.decode(get_num_threads(), memory(found))
        return found

    def score(
        self, Q: Any, *, q_mask: Any = None, q_lengths: Any = None, ids: Any = None,
        winners: bool = False, token_scores: bool = False,
    ) -> Any:
        """Scores queries against all documents, or with ``ids`` ``[Nq, K]`` against those.

        Queries of torch get gradients. On a GPU queries must be float16 or bfloat16; an index in
        host memory is copied there once.

        Returns:
            As :func:`maxsim`.
        """
        lib = library(Q)
        q_data, added, (q_mask,) = _items(Q, lib, "Q", q_mask)
        q = side(lib, q_data, "Q", q_mask, q_lengths)
        check_side(q, "Q")
        check(q.data.shape[-1] == self.dim, "Q", f"dim {self.dim} like the index",
              f"dim {q.data.shape[-1]}")
        self._check_device(q)
        pairing = Pairing(CROSS)
        if ids is not None:
            ids = lib.indices(ids, "ids")
            check(ids.ndim == 2 and ids.shape[0] == q.n_items, "ids", f"[{q.n_items}, K]",
                  f"shape {tuple(ids.shape)}")
            pairing = Pairing(2, int(ids.shape[1]), None, ids)
        found = lib.score_plaid(self._index, len(self), q, pairing,
                                Options(winners=winners, token_scores=token_scores))
        axes = (0,) * added
        found = Result(*(lib.like(lib.squeeze(x, axes), Q) for x in found))
        return found if winners or token_scores else found.scores

    def _check_device(self, q: Side) -> None:
        """Refuses queries that are not where an index on a GPU is."""
        if not isinstance(self._index, _maxsim.Plaid):
            found = str(getattr(q.data, "device", "cpu"))
            check(found == str(self._index.device), "Q",
                  f"queries on {self._index.device} like the index", found)

    def ranked_by(self, lib: Any, q: Side, k: int, options: Options) -> Any:
        """Scores, ids and counts of the best documents of checked queries."""
        check(not options.normalize, "normalize", "False; divide the queries before", True)
        self._check_device(q)
        found = lib.score_plaid(self._index, len(self), q, Pairing(CROSS), options)
        return lib.rank_plaid(self._index, found.scores, min(k, len(self)))

    #: Searches of an index take queries as they are.
    normalize = False


def _on_host(x: Any) -> Any:
    """Tensors of a GPU are copied."""
    return x.detach().cpu() if hasattr(x, "detach") else x


def _place(codes: Any, residuals: Any) -> Callable[[Any], Any]:
    """What brings arrays to where an index of these is: to their GPU, or to the host."""
    if not all(getattr(x, "is_cuda", False) for x in (codes, residuals)):
        return _on_host
    import torch

    check(codes.device == residuals.device, "residuals", f"a tensor on {codes.device} like codes",
          residuals.device)
    return lambda x: torch.as_tensor(x).detach().to(codes.device)


def _on_gpu(
    items: Side, codes: Any, residuals: Any, centroids: Any, weights: Any, nbits: int,
    is_little_endian: bool, normalize: bool,
) -> Any:
    """An index where its tensors are."""
    from ._backends.residuals import Residuals

    n = int(centroids.shape[0])
    if codes.numel():
        least, most = (int(x) for x in codes.aminmax())
        check(0 <= least and most < n, "codes", f"ids of {n} centroids", f"{least} to {most}")
    return Residuals(items, codes, residuals, centroids, weights, nbits, is_little_endian,
                     normalize)


def _floats(x: Any) -> Any:
    """float32 numbers of either library."""
    if x is None:
        return None
    if hasattr(x, "detach"):
        return x.float().contiguous()
    import numpy as np

    return np.ascontiguousarray(x, np.float32)


def _dense(x: Any) -> Any:
    if hasattr(x, "detach"):
        return x.contiguous()
    import numpy as np

    return np.ascontiguousarray(x)
