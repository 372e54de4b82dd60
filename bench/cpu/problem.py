"""Tokens that methods score: made once, in files that every method's process reads. numpy alone."""

import dataclasses
import json
import pathlib

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: A real set of text, in the tool's own format.
SAMPLE = ROOT / "cli" / "examples" / "debian-packages"


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a problem. `candidates`: documents that each query has for itself; 0 where every
    query meets every document."""

    n_queries: int
    query_len: int
    n_documents: int
    document_len: int
    dim: int = 128
    candidates: int = 0

    @property
    def words(self):
        """As the rows call it."""
        documents = f"({self.candidates or self.n_documents} × {self.document_len}) × {self.dim}"
        queries = f"{self.n_queries} queries of " if self.n_queries > 1 else ""
        of = "own candidates " if self.candidates else ""
        return f"{queries}{self.query_len} × {of}{documents}"

    @property
    def n_scores(self):
        return self.n_queries * (self.candidates or self.n_documents)

    @property
    def multiply_adds(self):
        return self.n_scores * self.query_len * self.document_len * self.dim


class Problem:
    """f32 tokens `[rows, dim]` of both sides, of length 1; `offsets`: first rows of the
    documents, and of the queries, where they differ in length."""

    def __init__(self, queries, documents, shape, offsets=(None, None)):
        self.queries, self.documents, self.shape = queries, documents, shape
        self.offsets = offsets

    @classmethod
    def random(cls, shape, seed=1):
        """Random directions."""
        generator = numpy.random.default_rng(seed)

        def unit(n):
            rows = generator.standard_normal((n, shape.dim), numpy.float32)
            return rows / numpy.linalg.norm(rows, axis=1, keepdims=True)

        queries = unit(shape.n_queries * shape.query_len)
        return cls(queries, unit(shape.n_documents * shape.document_len), shape)

    @classmethod
    def real(cls, folder=SAMPLE, n_queries=100):
        """A set of token embeddings in `queries.safetensors` and `documents.safetensors`."""
        sides = []
        for name in ("queries", "documents"):
            tensors = safetensors(pathlib.Path(folder) / f"{name}.safetensors")
            offsets = tensors["offsets"].astype(numpy.int64)
            if name == "queries":
                offsets = offsets[: n_queries + 1]
            # As they are: their lengths are 1 but for the rounding to f16, which is far below the
            # errors of the peer that takes them to be 1.
            rows = tensors["embeddings"][: offsets[-1]].astype(numpy.float32)
            sides.append((rows, offsets))
        (queries, of_queries), (documents, of_documents) = sides
        shape = Shape(len(of_queries) - 1, 0, len(of_documents) - 1, 0, queries.shape[1])
        return cls(queries, documents, shape, (of_queries, of_documents))

    def save(self, folder):
        """Writes it into a folder, for [`Problem.load`]."""
        folder.mkdir(parents=True, exist_ok=True)
        numpy.save(folder / "queries.npy", self.queries)
        numpy.save(folder / "documents.npy", self.documents)
        for name, offsets in zip(("of_queries", "of_documents"), self.offsets):
            if offsets is not None:
                numpy.save(folder / f"{name}.npy", offsets)
        (folder / "shape.json").write_text(json.dumps(dataclasses.asdict(self.shape)))
        return folder

    @classmethod
    def load(cls, folder):
        """Reads it."""
        folder = pathlib.Path(folder)
        names = ("of_queries", "of_documents")
        files = [folder / f"{name}.npy" for name in names]
        offsets = [numpy.load(file) if file.is_file() else None for file in files]
        shape = Shape(**json.loads((folder / "shape.json").read_text()))
        sides = (numpy.load(folder / f"{name}.npy") for name in ("queries", "documents"))
        return cls(*sides, shape, tuple(offsets))

    @property
    def is_ragged(self):
        return self.offsets[1] is not None

    def query(self, q):
        """The tokens of a query."""
        return part(self.queries, q, self.shape.query_len, self.offsets[0])

    def document(self, d):
        """The tokens of a document."""
        return part(self.documents, d, self.shape.document_len, self.offsets[1])

    def pairs(self):
        """Query and document of every score, in their order."""
        k = self.shape.candidates
        for q in range(self.shape.n_queries):
            of = range(q * k, (q + 1) * k) if k else range(self.shape.n_documents)
            yield from ((q, d) for d in of)

    def exact(self, rounded=lambda x: x):
        """Scores in float64 of tokens that `rounded` makes of these."""
        found = numpy.empty(self.shape.n_scores)
        last = None
        for i, (q, d) in enumerate(self.pairs()):
            if q != last:
                query, last = rounded(self.query(q)).astype(numpy.float64), q
            document = rounded(self.document(d)).astype(numpy.float64)
            found[i] = (document @ query.T).max(0).sum()
        return found


def part(rows, i, length, offsets):
    """Rows of an item."""
    if offsets is not None:
        return rows[offsets[i] : offsets[i + 1]]
    return rows[i * length : (i + 1) * length]


def safetensors(path):
    """The tensors of a file, {name: array}."""
    types = {"F16": "<f2", "F32": "<f4", "I64": "<i8", "I32": "<i4"}
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for name, of in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            first, last = (start + at for at in of["data_offsets"])
            array = numpy.frombuffer(raw[first:last], types[of["dtype"]])
            found[name] = array.reshape(of["shape"])
    return found


def bf16_bits(rows):
    """bf16 numbers nearest to f32 ones, ties to even, as u16; of finite ones."""
    bits = rows.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def rounded_to(element):
    """What makes of f32 numbers those of another type, as f32."""
    if element == "f16":
        return lambda rows: rows.astype(numpy.float16).astype(numpy.float32)
    if element == "bf16":
        return lambda rows: (bf16_bits(rows).astype(numpy.uint32) << 16).view(numpy.float32)
    return lambda rows: rows


def quality(scores, exact, shape, k=10):
    """How good scores are as a ranking: {share of the exact best `k` that they have among theirs,
    their mean and largest error}."""
    found, wanted = (x.reshape(shape.n_queries, -1) for x in (scores, exact))
    k = min(k, wanted.shape[1])
    shared = [
        len(set(numpy.argsort(-a, kind="stable")[:k]) & set(numpy.argsort(-b, kind="stable")[:k]))
        for a, b in zip(found, wanted)
    ]
    errors = (found - wanted).astype(numpy.float64)
    return {
        "overlap": float(numpy.mean(shared)) / k,
        "mean_error": float(errors.mean()),
        "largest_error": float(numpy.abs(errors).max()),
        "mean_loss": float((-errors / numpy.abs(wanted)).mean()),
    }
