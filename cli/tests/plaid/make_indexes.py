"""Writes the small indexes that the tests read, with the libraries whose formats they are.

    pip install fast-plaid==1.7.0.2110 torch==2.11.0 ujson tqdm
    pip download --no-deps colbert-ai==0.2.22  # and unpack it: its requirements are not needed
    python make_indexes.py PATH-OF-UNPACKED-COLBERT NEXT-PLAID-PROGRAM

The second argument is `next_plaid.rs`, built in a package with the dependencies next-plaid 1.8.5,
ndarray 0.17 and ndarray-npy 0.10. Runs on the CPU. Beside each index lies what its library decodes
it to. Files that no reader of codes needs are left out, above all `embeddings.npy`, an array of
pickled objects. """

import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import torch
from fast_plaid import fast_plaid_rust, search

HERE = Path(__file__).parent
DIM = 32
N_DOCUMENTS = 24
UNUSED = ["embeddings.npy", "plaid.lock", "ivf.npy", "ivf_lengths.npy", "plan.json"]


def tokens():
    """Centres, and documents of 1 to 11 f16 tokens of length 1 around them."""
    generator = torch.Generator().manual_seed(5)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    centres = torch.nn.functional.normalize(draw(20, DIM), dim=-1)
    documents = []
    for i in range(N_DOCUMENTS):
        n = 1 + (5 * i) % 11
        chosen = centres[torch.randint(0, 20, (n,), generator=generator)]
        documents.append(torch.nn.functional.normalize(chosen + 0.12 * draw(n, DIM), dim=-1).half())
    return centres, documents


def fast_plaid(documents, nbits, centroids=None, keep_shards=False):
    """An index as fast-plaid leaves it, in several chunks: merged, or with a file for each. Its own
    k-means takes nearly as many centroids as there are tokens here, which leaves few residuals."""
    folder = HERE / f"fast-plaid-{nbits}"
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["FAST_PLAID_KEEP_SHARDS"] = "1" if keep_shards else "0"
    index = search.FastPlaid(index=str(folder), device="cpu")
    if centroids is None:
        index.create(documents_embeddings=documents, nbits=nbits, seed=7, batch_size=10)
    else:
        folder.mkdir(exist_ok=True)
        fast_plaid_rust.create(
            index=str(folder),
            torch_path=index.torch_path,
            device="cpu",
            embedding_dim=DIM,
            nbits=nbits,
            embeddings=documents,
            centroids=centroids,
            batch_size=10,
            seed=7,
            compress_only=False,
        )
    index = search.FastPlaid(index=str(folder), device="cpu")
    decoded = fast_plaid_rust.reconstruct_embeddings(
        index.indices["cpu"], list(range(N_DOCUMENTS)), "cpu"
    )
    decoded = torch.cat(decoded)
    # fast-plaid decodes in f16.
    assert (decoded.half().float() == decoded).all()
    np.save(HERE / f"fast-plaid-{nbits}.decoded.npy", decoded.half().numpy())
    for name in UNUSED:
        (folder / name).unlink(missing_ok=True)
    if keep_shards:
        # Before version 1.7 there were chunks only.
        for merged in folder.glob("merged_*"):
            merged.unlink()
    return folder


def colbert(path, source):
    """The same codes and tables as ColBERT's own classes save and decode them."""
    for name in ["colbert", "colbert.infra", "colbert.indexing", "colbert.utils"]:
        # Its packages import transformers, faiss and more, which saving needs nothing of.
        package = types.ModuleType(name)
        package.__path__ = [str(Path(path, *name.split(".")))]
        sys.modules[name] = package
    config = types.ModuleType("colbert.infra.config")
    config.ColBERTConfig = None
    sys.modules["colbert.infra.config"] = config
    printing = types.ModuleType("colbert.utils.utils")
    printing.print_message = printing.flatten = lambda *_, **__: None
    sys.modules["colbert.utils.utils"] = printing
    from colbert.indexing.codecs.residual import ResidualCodec
    from colbert.indexing.codecs.residual_embeddings import ResidualEmbeddings

    nbits = json.loads((source / "metadata.json").read_text())["nbits"]
    load = lambda name: torch.from_numpy(np.load(source / f"{name}.npy"))
    folder = HERE / f"colbert-{nbits}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options = types.SimpleNamespace(total_visible_gpus=0, dim=DIM, nbits=nbits, rank=0)
    codec = ResidualCodec(
        options,
        load("centroids"),
        load("avg_residual").mean(),
        load("bucket_cutoffs"),
        load("bucket_weights"),
    )
    codes, residuals = load("merged_codes"), load("merged_residuals")
    decoded, passages, start = [], 0, 0
    chunks = sorted(source.glob("doclens.*.json"))
    for i, chunk in enumerate(chunks):
        lengths = json.loads(chunk.read_text())
        end = start + sum(lengths)
        embeddings = ResidualEmbeddings(codes[start:end].clone(), residuals[start:end].clone())
        embeddings.save(str(folder / str(i)))
        decoded.append(codec.decompress(embeddings))
        (folder / f"doclens.{i}.json").write_text(json.dumps(lengths))
        metadata = {
            "passage_offset": passages,
            "num_passages": len(lengths),
            "num_embeddings": end - start,
            "embedding_offset": start,
        }
        (folder / f"{i}.metadata.json").write_text(json.dumps(metadata, indent=4) + "\n")
        passages, start = passages + len(lengths), end
    # What a codec on a GPU holds; decoding above took the same numbers, as f32.
    codec.centroids = codec.centroids.half()
    codec.save(str(folder))
    metadata = {
        "config": {"dim": DIM, "nbits": nbits},
        "num_chunks": len(chunks),
        "num_partitions": len(codec.centroids),
        "num_embeddings": start,
        "avg_doclen": start / passages,
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=4) + "\n")
    np.save(HERE / f"colbert-{nbits}.decoded.npy", torch.cat(decoded).numpy())


def next_plaid(program, documents, nbits):
    """An index as next-plaid writes it: chunks, everything in f32."""
    folder = HERE / f"next-plaid-{nbits}"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as inputs:
        inputs = Path(inputs)
        np.save(inputs / "tokens.npy", torch.cat(documents).float().numpy())
        (inputs / "lengths.json").write_text(json.dumps([len(d) for d in documents]))
        outputs = [str(nbits), folder, HERE / f"next-plaid-{nbits}.decoded.npy"]
        subprocess.run(
            [program, inputs / "tokens.npy", inputs / "lengths.json", *outputs], check=True
        )
    for name in UNUSED:
        (folder / name).unlink(missing_ok=True)
    for merged in folder.glob("merged_*"):
        merged.unlink()


def main():
    centres, documents = tokens()
    np.save(HERE / "tokens.npy", torch.cat(documents).numpy())
    given = centres.half()
    fast_plaid(documents, 1, given)
    folder = fast_plaid(documents, 2, given)
    fast_plaid(documents, 4, given, keep_shards=True)
    fast_plaid(documents, 8)
    colbert(sys.argv[1], folder)
    next_plaid(sys.argv[2], documents, 4)


main()
