"""The compiled half: calls on memory whose addresses Python gives (`_sides.py`)."""

from typing import Any, Callable, final

_Numbers = tuple[Any, ...]
#: Address and number of entries.
_Memory = tuple[int, int]
#: Threads of the CPU engine, and the number of a CUDA device where a call runs there.
_Place = tuple[int, int | None]
#: Queries, documents, and their masks.
_Given = tuple[Any, Any, Any | None, Any | None]

__all__ = [
    "Chamfer",
    "CudaChamfer",
    "DeviceMemoryError",
    "Explanation",
    "Plaid",
    "Projected",
    "Quick",
    "SCALE_PADDING",
    "Screen",
    "WIDE_FROM",
    "WorkspaceError",
    "arrangement",
    "backward",
    "cuda_backward",
    "cuda_backward_plaid",
    "cuda_backward_residuals",
    "cuda_open",
    "cuda_quantize",
    "cuda_residual_norms",
    "cuda_score",
    "cuda_score_plaid",
    "cuda_score_residuals",
    "cuda_set_workspace",
    "cuda_write_segments",
    "dequantize",
    "project",
    "project_backward",
    "projected_gradients",
    "quantize",
    "rank",
    "run",
    "score",
    "score_projected",
    "topk",
    "version",
    "xtr",
    "xtr_search",
]

#: Documents below so many tokens have winners of two bytes on a GPU.
WIDE_FROM: int
#: Words that scales on a GPU have behind those of the last row.
SCALE_PADDING: int

class DeviceMemoryError(MemoryError): ...
class WorkspaceError(Exception): ...

@final
class Chamfer:
    def __new__(cls, n_threads: int, sides: _Numbers, asked: _Numbers) -> Chamfer: ...
    def read(self, values: _Memory, distances: _Memory, indices: _Memory) -> None: ...
    def backward(
        self, n_threads: int, sides: _Numbers, grad: _Memory, to: tuple[_Memory, _Memory],
    ) -> None: ...

@final
class CudaChamfer:
    def __new__(cls, call: _Numbers, sides: _Numbers, asked: _Numbers) -> CudaChamfer: ...
    def memory(self) -> tuple[int, int, int, int]: ...
    def find(self, call: _Numbers, sides: _Numbers, memory: _Memory) -> None: ...
    def backward(
        self, call: _Numbers, sides: _Numbers, memory: _Memory, grad: _Memory,
        to: tuple[_Memory, _Memory],
    ) -> None: ...

@final
class Explanation:
    def __new__(
        cls, n_threads: int, sides: _Numbers, words: _Numbers, picture: _Numbers | None
    ) -> Explanation: ...
    @property
    def score(self) -> float: ...
    def matches(self) -> list[tuple[int, float]]: ...
    def similarities(self, to: _Memory) -> None: ...
    def html(self) -> str: ...
    def svg(self) -> str: ...
    def text(self) -> str: ...
    def json(self) -> str: ...

@final
class Projected:
    def __new__(
        cls, place: _Place, sides: _Numbers, head: _Numbers, pairs: _Numbers,
    ) -> Projected: ...
    def read(self, room: _Numbers) -> None: ...
    def backward(
        self, place: _Place, sides: _Numbers, head: _Numbers, grad: _Memory, to: _Numbers,
    ) -> None: ...

@final
class Quick:
    def __new__(cls, n_threads: Callable[[], int]) -> Quick: ...
    def takes(self, given: _Given) -> bool: ...
    def score(
        self, given: _Given, options: int, with_winners: bool,
    ) -> tuple[Any, Any | None] | None: ...
    def gradients(
        self, given: _Given, of_scores: tuple[Any, Any], options: int, needs: tuple[bool, bool],
    ) -> tuple[Any | None, Any | None] | None: ...

@final
class Plaid:
    def __new__(
        cls, n_threads: int, tables: _Numbers, items: _Numbers, codes: _Memory, residuals: _Memory,
        is_little_endian: bool,
    ) -> Plaid: ...
    @staticmethod
    def train(n_threads: int, tokens: _Numbers, options: _Numbers) -> Plaid: ...
    def sizes(self) -> tuple[int, int, int, int, int, int]: ...
    def size_bytes(self) -> int: ...
    def parts(
        self, codes: _Memory, residuals: _Memory, centroids: _Memory, weights: _Memory,
    ) -> None: ...
    def max_len(self) -> int: ...
    def segments(self, to: _Memory) -> None: ...
    def has_tokens(self, to: _Memory) -> None: ...
    def decode(self, n_threads: int, to: _Memory) -> None: ...
    def score(self, n_threads: int, queries: _Numbers, pairs: _Numbers, room: _Numbers) -> None: ...
    def backward(
        self, n_threads: int, queries: _Numbers, pairs: _Numbers, room: _Numbers,
    ) -> None: ...

def arrangement(
    dim: int, nbits: int, is_little_endian: bool,
) -> tuple[int, int, int, int, list[list[int]], list[int]]: ...

@final
class Screen:
    def __new__(
        cls, n_threads: int, device: int | None, tokens: _Numbers, codes: _Numbers,
    ) -> Screen: ...
    def search(
        self, n_threads: int, queries: _Numbers, n_candidates: int, exact: bool,
        room: _Numbers, proven: _Memory, n_rescored: _Memory,
    ) -> None: ...

def backward(
    n_threads: int, sides: _Numbers, pairs: _Numbers, normalize: bool, room: _Numbers,
    of_weights: _Memory | None = None,
) -> None: ...
def cuda_backward(
    call: _Numbers, sides: _Numbers, pairs: _Numbers, memory: _Numbers,
    of_weights: _Memory | None = None,
) -> None: ...
def cuda_backward_plaid(
    call: _Numbers, queries: _Numbers, documents: Plaid, items: _Numbers | None, pairs: _Numbers,
    memory: _Numbers,
) -> None: ...
def cuda_backward_residuals(
    call: _Numbers, queries: _Numbers, documents: _Numbers, pairs: _Numbers, memory: _Numbers,
) -> None: ...
def cuda_open(ordinal: int) -> str: ...
def cuda_quantize(
    call: _Numbers, tokens: _Numbers, format: int, is_f16: bool, codes: _Memory, words: _Memory,
) -> None: ...
def cuda_residual_norms(call: _Numbers, documents: _Numbers, format: int) -> None: ...
def cuda_score(call: _Numbers, sides: _Numbers, pairs: _Numbers, results: _Numbers) -> int: ...
def cuda_score_plaid(
    call: _Numbers, queries: _Numbers, documents: Plaid, items: _Numbers | None, pairs: _Numbers,
    results: _Numbers,
) -> int: ...
def cuda_score_residuals(
    call: _Numbers, queries: _Numbers, documents: _Numbers, pairs: _Numbers, results: _Numbers,
) -> int: ...
def cuda_write_segments(
    call: _Numbers, items: _Numbers, ids: _Numbers | None, found: _Numbers) -> None: ...
def cuda_set_workspace(device: int, stream: int, address: int, len_bytes: int) -> None: ...
def dequantize(n_threads: int, codes: _Numbers, to: _Memory) -> None: ...
def project(
    place: _Place, hidden: _Numbers, head: _Numbers, tokens: _Memory,
) -> None: ...
def project_backward(
    place: _Place, hidden: _Numbers, head: _Numbers, grad: _Memory, to: _Numbers,
) -> None: ...
def projected_gradients(
    place: _Place, sides: _Numbers, head: _Numbers, pairs: _Numbers, given: _Numbers, to: _Numbers,
) -> None: ...
def quantize(
    n_threads: int, tokens: _Numbers, format: int, scale_kind: int, room: _Numbers,
) -> None: ...
def rank(
    n_threads: int, scores: _Memory, has_tokens: _Memory | None, n_columns: int, k: int,
    room: _Numbers,
) -> None: ...
def run(argv: list[str]) -> int: ...
def score(
    n_threads: int, sides: _Numbers, pairs: _Numbers, normalize: bool, room: _Numbers,
) -> None: ...
def score_projected(
    place: _Place, sides: _Numbers, head: _Numbers, pairs: _Numbers, consistent: bool,
    room: _Numbers,
) -> None: ...
def topk(
    n_threads: int, sides: _Numbers, normalize: bool, k: int, room: _Numbers,
) -> None: ...
def version() -> str: ...
def xtr(
    place: _Place, sides: _Numbers, pairs: _Numbers, asked: _Numbers, room: _Numbers,
) -> None: ...
def xtr_search(
    place: _Place, sides: _Numbers, asked: _Numbers, room: _Numbers, mask: _Memory | None = None,
) -> None: ...
