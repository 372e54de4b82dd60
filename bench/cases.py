"""The cases of the campaign, in the order in which they run. Nothing here needs PyTorch."""

import dataclasses
import math

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run maxsim on a case's problem: a row of the results."""

    words: str = ""
    """Appended to the case's words."""
    options: str = ""
    """Options of the C interface."""
    element: str = ""
    """Where it is not the case's."""
    masked: bool = False
    """Half of the document tokens masked, at random."""
    row: str = ""
    """Takes the fastest of the kernels whose names start so."""
    peers: bool = True
    """Whether the peers compute the same."""
    rate: str = ""
    """The matrix product whose rate is the limit, where it is not the element's own."""
    x: float | None = None
    """Target: the best peer's time over ours, at least."""
    limit: float | None = None
    """Target: the limit's time over ours, at least."""
    plain: float | None = None
    """Target: our time over that of the case's first variant, at most."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem: its shape, how documents lie, and what is run on it."""

    name: str
    words: str
    n_queries: int
    query_len: int
    n_docs: int
    doc_len: int
    """Of the longest document, where they are ragged."""
    dim: int = 128
    element: str = "f16"
    kind: str = "dense"
    """dense, ragged or candidates (n_docs documents of each query's own)."""
    lengths: str = ""
    """Distribution of the documents' lengths (data.py)."""
    format: str = ""
    """What documents are compressed to (compressed.py): fp8 and int8 as queries are, plaid; coarse
    where INT8 codes find what f16 scores; or nothing."""
    nbits: int = 0
    """Of a PLAID residual's element."""
    n_centroids: int = 0
    variants: tuple = (Variant(),)

    def scaled(self, factor):
        """The same with fewer documents, to try the scripts."""
        return dataclasses.replace(self, n_docs=max(3, math.ceil(self.n_docs * factor)))


BF16 = Variant(", bf16", element="bf16", peers=False, plain=1.03)


def case(name, words, shape, x, limit=None, *, extra=(), **more):
    main = Variant(x=x, limit=limit)
    return Case(name, words, *shape, **more, variants=(main, *extra))


def thousand(query_len, doc_len, x, limit=None):
    words = f"one query of {query_len} x 1000 x {doc_len}"
    return case(f"1k-{query_len}-{doc_len}", words, (1, query_len, 1000, doc_len), x, limit)


def wide(dim, x, limit=None):
    words = f"one query of 1024 x 128 x 1024, dim {dim}"
    return case(f"dim-{dim}", words, (1, 1024, 128, 1024), x, limit, dim=dim)


CASES = [
    case(
        "page-10k",
        "one query of 1024 x 10 000 x 1024",
        (1, 1024, 10000, 1024),
        1.75,
        1.03,
        extra=(
            BF16,
            Variant(", half of the document tokens masked", masked=True, peers=False, plain=1.15),
            Variant(", with winners", "winners=1", peers=False, plain=1.10),
            Variant(", sm_80 kernel", row="maxsim_forward_sm80_f16_d128_q256", x=0.9),
        ),
    ),
    case("visual-10k", "one query of 512 x 10 000 x 1024", (1, 512, 10000, 1024), 1.62, 1.02),
    case("medium-10k", "one query of 128 x 10 000 x 1024", (1, 128, 10000, 1024), 1.15, 0.95),
    case(
        "short-10k-1024",
        "one query of 32 x 10 000 x 1024",
        (1, 32, 10000, 1024),
        0.98,
        0.97,
        extra=(BF16,),
    ),
    case(
        "short-10k-300",
        "one query of 32 x 10 000 x 300",
        (1, 32, 10000, 300),
        0.98,
        0.97,
        extra=(BF16,),
    ),
    thousand(32, 300, 1.2),
    thousand(32, 1024, 1.03),
    thousand(128, 1024, 1.2),
    thousand(512, 1024, 1.55),
    thousand(1024, 1024, 1.55, 1.0),
    case(
        "multi-32-180",
        "32 queries of 32 x 1024 x 180",
        (32, 32, 1024, 180),
        3.8,
        0.75,
        extra=(BF16,),
    ),
    case(
        "multi-32-1024",
        "32 queries of 32 x 1024 x 1024",
        (32, 32, 1024, 1024),
        3.4,
        0.92,
        extra=(Variant(", with winners", "winners=1", peers=False, plain=1.10),),
    ),
    case("pages-8", "8 queries of 1024 x 128 x 1024", (8, 1024, 128, 1024), 1.38, 0.98),
    case("pages-32", "32 queries of 1024 x 128 x 1024", (32, 1024, 128, 1024), 1.38, 0.98),
    case(
        "in-batch",
        "1024 queries of 32 x 1024 x 300",
        (1024, 32, 1024, 300),
        3.9,
        0.85,
        extra=(BF16,),
    ),
    case(
        "ragged-uniform",
        "ragged, one query of 32 x 1000, uniform 256-512",
        (1, 32, 1000, 512),
        1.12,
        kind="ragged",
        lengths="uniform",
    ),
    case(
        "ragged-lognormal",
        "ragged, one query of 32 x 1000, log-normal(4.65, 0.45) in 16-512",
        (1, 32, 1000, 512),
        1.3,
        kind="ragged",
        lengths="log-normal",
    ),
    case(
        "ragged-exponential",
        "ragged, one query of 32 x 1000, exponential of mean 71 in 8-512",
        (1, 32, 1000, 512),
        1.3,
        kind="ragged",
        lengths="exponential",
    ),
    case(
        "ragged-100k",
        "ragged log-normal, one query of 32 x 100 000",
        (1, 32, 100000, 512),
        0.98,
        0.97,
        kind="ragged",
        lengths="log-normal 100k",
    ),
    case(
        "ragged-100k-cross",
        "ragged log-normal, 32 queries of 32 x 100 000",
        (32, 32, 100000, 512),
        4.0,
        0.75,
        kind="ragged",
        lengths="log-normal 100k",
    ),
    case(
        "candidates-100",
        "candidates: 32 queries of 32 x 100 documents of 256",
        (32, 32, 100, 256),
        1.05,
        0.95,
        kind="candidates",
    ),
    case(
        "candidates-10",
        "candidates: 32 queries of 32 x 10 documents of 180",
        (32, 32, 10, 180),
        1.2,
        kind="candidates",
    ),
    case(
        "candidates-16",
        "candidates: 8 queries of 64 x 16 documents of 1024",
        (8, 64, 16, 1024),
        1.5,
        kind="candidates",
    ),
    case("few-8", "one query of 32 x 8 x 8192", (1, 32, 8, 8192), None),
    wide(64, 1.6),
    wide(96, 1.6),
    wide(256, 1.8, 0.85),
    wide(512, 3.5, 0.85),
    wide(768, 1.9, 0.85),
    wide(1024, 1.9, 0.85),
    wide(2048, 1.9, 0.85),
    wide(4096, 2.0, 0.85),
    Case(
        "f32",
        "f32, one query of 1024 x 1000 x 1024",
        1,
        1024,
        1000,
        1024,
        element="f32",
        variants=(
            Variant(", exact", rate="f32"),
            Variant(", TF32 option", "tf32=1", rate="tf32", x=1.3),
        ),
    ),
]

SCALING = Case("scaling", "one query of 32 x n documents of 100 tokens", 1, 32, 1000000, 100)
SCALING_N_DOCS = [1000, 3000, 10000, 30000, 100000, 300000, 1000000]

# Shapes of the Flash-MaxSim paper, beside plain PyTorch.
BASELINE_SHAPES = [(32, 300), (32, 1024), (128, 1024), (512, 1024), (1024, 1024)]
BASELINES = [
    Case(f"pytorch-{n // 1000}k-{q}-{d}", f"PyTorch: one query of {q} x {n} x {d}", 1, q, n, d)
    for n in (1000, 10000)
    for q, d in BASELINE_SHAPES
]


def coded(name, words, shape, **goals):
    """A case of each format with its goals: times the best peer, of the limit."""
    return [
        Case(
            f"{format}-{name}",
            f"{format.upper()}, {words}",
            *shape,
            format=format,
            variants=(Variant(rate="f8", x=x, limit=limit),),
        )
        for format, (x, limit) in goals.items()
    ]


def plaid(nbits, n_docs, doc_len, n_centroids, x, more=""):
    spaced = lambda n: f"{n:,}".replace(",", " ") if n >= 10000 else n
    words = (
        f"PLAID {nbits} bits, one query of 32 x {spaced(n_docs)} x {doc_len}, "
        f"{spaced(n_centroids)} centroids{more}"
    )
    shape = (1, 32, n_docs, doc_len)
    variants = (Variant(rate="f16", x=x),)
    name = f"plaid-{nbits}-{n_docs}-{doc_len}".replace("-1000000-", "-1m-")
    return Case(
        name, words, *shape, format="plaid", nbits=nbits, n_centroids=n_centroids, variants=variants
    )


def coarse(query_len, x):
    words = f"coarse to fine, one query of {query_len} x 10 000 x 1024"
    variants = (Variant(rate="f8", x=x),)
    return Case(
        f"coarse-{query_len}-10000-1024",
        words,
        1,
        query_len,
        10000,
        1024,
        format="coarse",
        variants=variants,
    )


# Compressed documents, whose record is compressed.json.
COMPRESSED = [
    *coded(
        "1k-1024-1024",
        "one query of 1024 x 1000 x 1024",
        (1, 1024, 1000, 1024),
        fp8=(2.5, 0.95),
        int8=(2.3, 0.8),
    ),
    *coded(
        "page-10k",
        "one query of 1024 x 10 000 x 1024",
        (1, 1024, 10000, 1024),
        fp8=(2.4, 0.95),
        int8=(2.2, 0.8),
    ),
    *coded(
        "short-10k-300",
        "one query of 32 x 10 000 x 300",
        (1, 32, 10000, 300),
        fp8=(1.25, 0.92),
        int8=(1.35, 0.92),
    ),
    *coded(
        "short-10k-1024",
        "one query of 32 x 10 000 x 1024",
        (1, 32, 10000, 1024),
        fp8=(1.03, 0.92),
        int8=(1.2, 0.92),
    ),
    *coded(
        "multi-32-1024",
        "32 queries of 32 x 1024 x 1024",
        (32, 32, 1024, 1024),
        fp8=(4.0, 0.72),
        int8=(None, None),
    ),
    *(plaid(nbits, 4000, 300, 16384, 15.0) for nbits in (2, 4)),
    *(plaid(nbits, 1000, 180, 16384, 7.0) for nbits in (2, 4)),
    plaid(2, 1000000, 100, 131072, 6.0, ", normalised"),
    *(coarse(query_len, x) for query_len, x in ((32, 1.5), (1024, None))),
]

BY_NAME = {case.name: case for case in [*CASES, SCALING, *BASELINES, *COMPRESSED]}
