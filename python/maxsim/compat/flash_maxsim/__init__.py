"""The functions of flash-maxsim 0.3 under their names.

Scores are f32 and -∞ for a document without tokens; lengths count a document's first tokens.
Shapes that disagree raise an error that is both a ValueError and an AssertionError. Unlike there,
f32 and bf16 tokens keep their precision, NaN shows, query lengths hold for long queries too, and
distances of Chamfer are differences. Launch options (`query_chunk_size`, `pad_lq`, `splitk`,
`grid_factor`, `num_splits`) are taken and change nothing.
"""

from __future__ import annotations

from .flash_chamfer import (
    flash_chamfer,
    flash_chamfer_invgrid_train,
    flash_chamfer_train,
    naive_chamfer,
    naive_chamfer_one_direction,
)
from .flash_maxsim import (
    flash_maxsim,
    flash_maxsim_batched,
    flash_maxsim_pairs,
    flash_maxsim_pairs_dense,
    flash_maxsim_persistent,
    flash_maxsim_qreuse,
    flash_maxsim_splitk,
    flash_maxsim_train,
)
from .flash_maxsim_batched_train import flash_maxsim_batched_train
from .flash_maxsim_contrastive import colbert_contrastive_step
from .flash_maxsim_int8_train import flash_maxsim_int8_batched_train
from .flash_maxsim_quant import (
    dequantize_int8,
    flash_maxsim_int8,
    flash_maxsim_int8_symmetric,
    flash_maxsim_int8x8,
    quantize_int8,
    quantize_int8_symmetric,
    quantize_query_int8,
)
from .flash_maxsim_rerank import (
    flash_maxsim_rerank,
    flash_maxsim_rerank_direct,
    flash_maxsim_rerank_padded,
)
from .flash_maxsim_sparse import flash_maxsim_sparse, maxsim_sparse_naive
from .flash_maxsim_topk import flash_maxsim_topk
from .flash_maxsim_varlen import flash_maxsim_packed, flash_maxsim_varlen, pack_docs, pack_pairs
from .naive import (
    maxsim_at_operator,
    maxsim_bmm,
    maxsim_chunked,
    maxsim_naive,
    maxsim_naive_batched,
    maxsim_naive_fp32,
    maxsim_naive_int8,
)
from .warmup import warmup

#: The version whose functions these are.
__version__ = "0.3.0"

__all__ = [
    "__version__",
    "colbert_contrastive_step",
    "dequantize_int8",
    "flash_chamfer",
    "flash_chamfer_invgrid_train",
    "flash_chamfer_train",
    "flash_maxsim",
    "flash_maxsim_batched",
    "flash_maxsim_batched_train",
    "flash_maxsim_int8",
    "flash_maxsim_int8_batched_train",
    "flash_maxsim_int8_symmetric",
    "flash_maxsim_int8x8",
    "flash_maxsim_packed",
    "flash_maxsim_pairs",
    "flash_maxsim_pairs_dense",
    "flash_maxsim_persistent",
    "flash_maxsim_qreuse",
    "flash_maxsim_rerank",
    "flash_maxsim_rerank_direct",
    "flash_maxsim_rerank_padded",
    "flash_maxsim_sparse",
    "flash_maxsim_splitk",
    "flash_maxsim_topk",
    "flash_maxsim_train",
    "flash_maxsim_varlen",
    "maxsim_at_operator",
    "maxsim_bmm",
    "maxsim_chunked",
    "maxsim_naive",
    "maxsim_naive_batched",
    "maxsim_naive_fp32",
    "maxsim_naive_int8",
    "maxsim_sparse_naive",
    "naive_chamfer",
    "naive_chamfer_one_direction",
    "pack_docs",
    "pack_pairs",
    "quantize_int8",
    "quantize_int8_symmetric",
    "quantize_query_int8",
    "warmup",
]
