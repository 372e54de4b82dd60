"""The other libraries' calls for a problem. Both are imported as they are installed."""

import torch


def calls(problem):
    """{name: call or the error of making it}."""
    made = {}
    for name, make in MAKERS[problem.case.format].items():
        try:
            made |= make(problem)
        except Exception as error:  # a peer that is not installed, or refuses the shape
            made[name] = error
    return made


def flash(problem):
    import flash_maxsim

    case, queries = problem.case, problem.queries
    if case.kind == "candidates":
        documents = problem.padded
        return {
            "flash-maxsim": lambda: flash_maxsim.flash_maxsim_batched(
                queries, documents, shared_docs=False
            )
        }
    if case.kind == "ragged":
        offsets = problem.offsets.to(torch.int32).to(problem.device)
        longest = int(problem.lengths.max())
        packed = problem.documents

        def each_query():
            score = flash_maxsim.flash_maxsim_packed
            return [score(query, packed, offsets, longest) for query in queries]

        if case.n_queries > 1:
            return {"flash-maxsim packed": each_query}
        one = queries[0]
        found = {
            "flash-maxsim packed": lambda: flash_maxsim.flash_maxsim_packed(
                one, packed, offsets, longest
            )
        }
        if case.n_docs <= 1000:
            padded, lengths = pad(problem), problem.lengths.to(problem.device)
            found["flash-maxsim padded"] = lambda: flash_maxsim.flash_maxsim(one, padded, lengths)
        return found
    documents = problem.padded
    if case.n_queries > 1:
        return {
            "flash-maxsim": lambda: flash_maxsim.flash_maxsim_batched(
                queries, documents, shared_docs=True
            )
        }
    one = queries[0]
    return {"flash-maxsim": lambda: flash_maxsim.flash_maxsim(one, documents)}


# late-interaction-kernels addresses the elements of a call's documents with 32 bits: scores of more
# are wrong, and far beyond them its reads take the device away from all that follows.
ELEMENTS_MAX = (1 << 31) - 1


def chunk_of(problem):
    """Documents that late-interaction-kernels can address at once; 0 where that is all."""
    n_elements = problem.documents.numel()
    return problem.case.n_docs * ELEMENTS_MAX // n_elements if n_elements > ELEMENTS_MAX else 0


def late_interaction(problem):
    import late_interaction_kernels

    case, queries = problem.case, problem.queries
    name = "late-interaction-kernels"
    if case.kind != "ragged":
        documents = problem.padded
        return {name: lambda: late_interaction_kernels.maxsim(queries, documents)}
    offsets = problem.offsets.to(torch.int32).to(problem.device)
    starts = torch.arange(case.n_queries + 1, dtype=torch.int32) * case.query_len
    starts = starts.to(problem.device)
    flat, packed = queries.view(-1, case.dim), problem.documents
    longest = int(problem.lengths.max())
    score = late_interaction_kernels.maxsim_varlen
    return {name: lambda: score(flat, packed, starts, offsets, case.query_len, longest)}


def late_interaction_fp8(problem):
    from late_interaction_kernels.fp8 import maxsim_inference_fp8

    case, queries, documents = problem.case, problem.query_codes, problem.document_codes
    q, d = (
        queries.codes.view(*queries.shape, case.dim),
        documents.codes.view(*documents.shape, case.dim),
    )
    scales = {
        "scale_Q": queries.scales.view(queries.shape),
        "scale_D": documents.scales.view(documents.shape),
    }
    return {"late-interaction-kernels": lambda: maxsim_inference_fp8(q, d, **scales)}


def flash_int8(problem):
    from flash_maxsim import flash_maxsim_int8x8

    case, queries, documents = problem.case, problem.query_codes, problem.document_codes
    # Its scales are f16, as those of the codes are.
    q_scales, d_scales = (side.scales.half().view(side.shape) for side in (queries, documents))
    q, d = (
        queries.codes.view(*queries.shape, case.dim),
        documents.codes.view(*documents.shape, case.dim),
    )

    def score(i):
        return flash_maxsim_int8x8(
            problem.queries[i], d, d_scales, Q_int8=q[i], q_scales=q_scales[i]
        )

    if case.n_queries == 1:
        return {"flash-maxsim int8x8": lambda: score(0)}
    return {
        f"flash-maxsim int8x8, {case.n_queries} calls": lambda: [
            score(i) for i in range(case.n_queries)
        ]
    }


# Its kernels address the bytes of residuals with 32 bits.
RESIDUAL_BYTES_MAX = (1 << 31) - 1


def late_interaction_residual(problem):
    from late_interaction_kernels.plaid import maxsim_residual, maxsim_residual_varlen

    case, query = problem.case, problem.queries[0]
    tables = (problem.centroids, problem.weights, case.nbits)
    row_bytes = problem.residuals.shape[1]
    n_parts = -(-problem.n_rows * row_bytes // RESIDUAL_BYTES_MAX)
    n_docs = -(-case.n_docs // n_parts)
    dense, packed = [], []
    for first in range(0, case.n_docs, n_docs):
        n = min(n_docs, case.n_docs - first)
        rows = slice(first * case.doc_len, (first + n) * case.doc_len)
        codes, residuals = problem.codes[rows], problem.residuals[rows]
        lengths = torch.full((n,), case.doc_len, device=problem.device)
        dense.append((codes.view(n, -1), residuals.view(n, case.doc_len, -1), lengths))
        offsets = torch.arange(n + 1, dtype=torch.int32, device=problem.device) * case.doc_len
        packed.append((codes, residuals, offsets))

    def joined(parts):
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def residual():
        return joined([maxsim_residual(query, *part, *tables) for part in dense])

    def varlen():
        return joined(
            [
                maxsim_residual_varlen(query, *part, *tables, max_seqlen_d=case.doc_len)
                for part in packed
            ]
        )

    words = f", {len(dense)} calls" if len(dense) > 1 else ""
    return {
        f"late-interaction-kernels{words}": residual,
        f"late-interaction-kernels varlen{words}": varlen,
    }


# By what documents are compressed to.
MAKERS = {
    "": {"flash-maxsim": flash, "late-interaction-kernels": late_interaction},
    "fp8": {"late-interaction-kernels": late_interaction_fp8},
    "int8": {"flash-maxsim int8x8": flash_int8},
    "plaid": {"late-interaction-kernels": late_interaction_residual},
    "coarse": {},
}


def pad(problem):
    """The ragged documents as one padded tensor."""
    case = problem.case
    longest = int(problem.lengths.max())
    padded = torch.zeros(
        case.n_docs, longest, case.dim, dtype=problem.documents.dtype, device=problem.device
    )
    valid = torch.arange(longest)[None] < problem.lengths[:, None]
    padded[valid.to(problem.device)] = problem.documents
    return padded


def eager(queries, documents):
    """All similarities at once, as PyTorch users write it: `[n_queries, n_docs]`."""
    found = torch.einsum("qsd,ntd->qnst", queries, documents)
    return found.amax(3).float().sum(2)


def chunked(queries, documents, n):
    """The same, n documents at a time."""
    return torch.cat([eager(queries, part) for part in documents.split(n)], dim=1)


def compiled(queries, documents, **more):
    """The whole expression through PyTorch's compiler."""
    call = torch.compile(eager, dynamic=False, **more)
    return lambda: call(queries, documents)


def pytorch(problem):
    """MaxSim as PyTorch users write it: {name: call}."""
    queries, documents = problem.queries, problem.padded
    return {
        "PyTorch, eager": lambda: eager(queries, documents),
        "PyTorch, in chunks of 256": lambda: chunked(queries, documents, 256),
        "PyTorch, compiled": compiled(queries, documents),
    }
