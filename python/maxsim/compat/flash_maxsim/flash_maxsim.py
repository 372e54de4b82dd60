"""Scores of one query, of batches and of pairs."""

from __future__ import annotations

from typing import Optional, Sequence, Union

from torch import Tensor

from ._shapes import need, score, score_single
from .flash_maxsim_varlen import flash_maxsim_packed, flash_maxsim_varlen, pack_pairs
from .naive import maxsim_naive


def flash_maxsim(
    Q: Tensor,
    D: Tensor,
    doc_lengths: Optional[Tensor] = None,
    query_chunk_size: Optional[int] = 128,
    splitk: bool = False,
) -> Tensor:
    """Scores `[B]` of `Q` `[Lq, d]` and `D` `[B, Ld, d]` with lengths `[B]`.

    Packed documents `[T, d]` need their offsets `[B + 1]` in `doc_lengths`.
    """
    del splitk
    need(Q.dim() == 2, f"Q must be [Lq, d], got {tuple(Q.shape)}")
    if D.dim() == 2:
        need(doc_lengths is not None, "packed documents need their offsets [B + 1] as doc_lengths")
        assert doc_lengths is not None
        return flash_maxsim_packed(Q, D, doc_lengths, query_chunk_size=query_chunk_size)
    return score_single(Q, D, doc_lengths)


def flash_maxsim_batched(
    Q: Tensor,
    D: Tensor,
    doc_lengths: Optional[Tensor] = None,
    shared_docs: bool = True,
    query_lengths: Optional[Tensor] = None,
    pad_lq: bool = True,
    query_chunk_size: Optional[int] = 128,
) -> Tensor:
    """Scores `[Nq, B]` of `Q` `[Nq, Lq, d]`.

    `D` is `[B, Ld, d]`, or `[Nq, B, Ld, d]` without `shared_docs`; `doc_lengths` `[B]` or
    `[Nq * B]`, `query_lengths` `[Nq]`.
    """
    del pad_lq, query_chunk_size
    need(
        Q.dim() == 3 and Q.shape[2] == D.shape[-1],
        f"Q must be [Nq, Lq, d] with the d of D, got {tuple(Q.shape)} and {tuple(D.shape)}",
    )
    if shared_docs:
        need(D.dim() == 3, f"shared documents must be [B, Ld, d], got {tuple(D.shape)}")
    else:
        need(
            D.dim() == 4 and D.shape[0] == Q.shape[0],
            f"documents must be [Nq, B, Ld, d] without shared_docs, got {tuple(D.shape)}",
        )
    return score(Q, D, doc_lengths, query_lengths)


def flash_maxsim_train(Q: Tensor, D: Tensor) -> Tensor:
    """Scores `[B]` of `Q` `[Lq, d]` and `D` `[B, Ld, d]`, differentiable."""
    return score_single(Q, D)


def flash_maxsim_pairs_dense(
    Q: Tensor,
    D: Tensor,
    q_lengths: Optional[Tensor] = None,
    doc_lengths: Optional[Tensor] = None,
) -> Tensor:
    """Scores `[B]` of the pairs `(Q[b], D[b])` of `[B, Lq, d]` and `[B, Ld, d]`."""
    need(Q.dim() == 3 and D.dim() == 3, f"both must be 3D, got {Q.dim()}D and {D.dim()}D")
    need(Q.shape[0] == D.shape[0], f"B mismatch: {Q.shape[0]} and {D.shape[0]}")
    need(Q.shape[2] == D.shape[2], f"d mismatch: {Q.shape[2]} and {D.shape[2]}")
    return score(Q, D.unsqueeze(1), doc_lengths, q_lengths).squeeze(-1)


def flash_maxsim_pairs(
    q_embs: Union[Tensor, Sequence[Tensor]], d_embs: Union[Tensor, Sequence[Tensor]]
) -> Tensor:
    """Scores `[N]` of pairs: tensors `[N, L, d]`, or lists of tensors `[L_i, d]`."""
    if isinstance(q_embs, Tensor) and isinstance(d_embs, Tensor):
        return flash_maxsim_pairs_dense(q_embs, d_embs)
    need(
        len(q_embs) == len(d_embs) and len(q_embs) > 0,
        f"pairs must be as many on both sides and some, got {len(q_embs)} and {len(d_embs)}",
    )
    return flash_maxsim_varlen(*pack_pairs(list(q_embs), list(d_embs)))


def flash_maxsim_persistent(
    Q: Tensor, D: Tensor, doc_lengths: Optional[Tensor] = None, grid_factor: int = 2
) -> Tensor:
    """Scores `[B]` of one query `[Lq, d]`, or `[Nq, B]` of `[Nq, Lq, d]`."""
    del grid_factor
    need(
        D.dim() == 3 and D.shape[2] == Q.shape[-1],
        f"D must be [B, Ld, d={Q.shape[-1]}], got {tuple(D.shape)}",
    )
    if Q.dim() == 3:
        return score(Q, D, doc_lengths)
    return score_single(Q, D, doc_lengths)


def flash_maxsim_qreuse(Q: Tensor, D: Tensor, doc_lengths: Optional[Tensor] = None) -> Tensor:
    """The same as `flash_maxsim` of padded documents."""
    return score_single(Q, D, doc_lengths)


def flash_maxsim_splitk(
    Q: Tensor, D: Tensor, doc_lengths: Optional[Tensor] = None, num_splits: int = 4
) -> Tensor:
    """The same as `flash_maxsim` of padded documents."""
    del num_splits
    return score_single(Q, D, doc_lengths)





__all__ = [
    "flash_maxsim",
    "flash_maxsim_batched",
    "flash_maxsim_pairs",
    "flash_maxsim_pairs_dense",
    "flash_maxsim_persistent",
    "flash_maxsim_qreuse",
    "flash_maxsim_splitk",
    "flash_maxsim_train",
    "maxsim_naive",
]
