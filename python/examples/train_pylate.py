"""Trains a PyLate model with PyLate's losses, scored by maxsim and by PyLate's own code.

    python python/examples/train_pylate.py --device cpu --steps 10
    python python/examples/train_pylate.py --loss distillation

A small BERT from nothing in ``pylate.models.ColBERT``, trained twice from the same start with the
same batches: with ``maxsim.integrations.pylate`` enabled, and without. ``Contrastive`` learns from
pairs of questions and descriptions of Debian packages; ``Distillation`` from the scores that the
sample's token embeddings give a synopsis and candidates. Losses of both runs, and nDCG@10 of the
held-out synopses before and after, are printed; losses.csv in ``--out`` has every step.

Needs PyLate 1.6, transformers and safetensors.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import torch
from pylate import losses, models
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from transformers.utils import logging

import encoder
import maxsim
import packages
from maxsim.integrations import pylate as integration

Step = Callable[[Any, Any], Tensor]


def save_model(data: packages.Packages, folder: str, hidden: int, layers: int) -> None:
    """A vocabulary and a BERT that has learnt nothing, in the files that PyLate loads."""
    texts = [data.documents[id] for id in data.to_learn_from]
    trained = encoder.train_tokenizer([*texts, *(query.text for query in data.train)], 4000)
    special = {"pad_token": encoder.PAD, "unk_token": encoder.UNKNOWN, "mask_token": "[MASK]",
               "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, **special)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, intermediate_size=4 * hidden,
        max_position_embeddings=256, pad_token_id=tokenizer.pad_token_id)
    BertModel(config).save_pretrained(folder)


def load_model(folder: str, device: str) -> Any:
    """That model, in PyLate, in the same state every time."""
    torch.manual_seed(0)
    return models.ColBERT(folder, embedding_size=128, query_length=32, document_length=128,
                          device=device, do_query_expansion=False)


def tokens(model: Any, texts: list[str], is_query: bool) -> dict[str, Tensor]:
    """The model's input."""
    found = model.tokenize(texts, is_query=is_query)
    return {name: x.to(model.device) for name, x in found.items() if isinstance(x, Tensor)}


def contrastive(data: packages.Packages, batch: int) -> Step:
    """A step on pairs of a question and its document."""
    pairs = packages.Pairs(data, 0)

    def step(model: Any, loss: Any) -> Tensor:
        questions, documents = pairs.batch(batch)
        features = [tokens(model, questions, True), tokens(model, documents, False)]
        return loss(features)  # type: ignore[no-any-return]

    return step


def distillation(data: packages.Packages, folder: Path, batch: int, n: int = 8) -> Step:
    """A step on synopses with candidates, and the scores that the sample's embeddings give."""
    drawn = random.Random(0)
    sides = []
    for name in ("queries", "documents"):
        stored = load_file(folder / f"{name}.safetensors")
        rows, ends = stored["embeddings"].float(), stored["offsets"].tolist()
        sides.append([rows[begin:end] for begin, end in zip(ends, ends[1:])])
    # Every score once; query ``i`` of the sample belongs to document ``i``.
    teacher = maxsim.maxsim(*sides)

    def step(model: Any, loss: Any) -> Tensor:
        queries = drawn.sample(data.train, min(batch, len(data.train)))
        ids = [[query.relevant[0], *drawn.sample(data.to_learn_from, n - 1)] for query in queries]
        rows = torch.tensor([query.relevant[0] for query in queries])
        labels = teacher[rows[:, None], torch.tensor(ids)].to(model.device)
        texts = [data.documents[id] for row in ids for id in row]
        features = [tokens(model, [query.text for query in queries], True),
                    tokens(model, texts, False)]
        return loss(features, labels / labels.amax(-1, keepdim=True) * 4)

    return step


def train(model: Any, loss: Any, step: Step, steps: int, rate: float) -> list[float]:
    """Learns, and gives the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    values = []
    model.eval()  # dropout would make two runs two
    for _ in range(steps):
        optimizer.zero_grad()
        value = step(model, loss)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        values.append(value.item())
    return values


@torch.no_grad()
def held_out_ndcg(model: Any, data: packages.Packages) -> float:
    """nDCG@10 of the held-out synopses against all documents."""
    def embeddings(texts: list[str], is_query: bool) -> list[Tensor]:
        found = model.encode(texts, is_query=is_query, convert_to_tensor=True,
                             show_progress_bar=False)
        return [x.float() for x in found]

    queries = embeddings([query.text for query in data.held_out], True)
    scores = maxsim.maxsim(queries, embeddings(data.documents, False))
    return packages.ndcg(scores.cpu(), data.held_out)


def main() -> None:
    """Both runs, and how they differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=packages.SAMPLE)
    parser.add_argument("--out", type=Path, default=Path("target/train_pylate"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--loss", choices=("contrastive", "distillation"), default="contrastive")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    data = packages.read(options.data)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        save_model(data, folder, options.hidden, options.layers)
        for name in ("maxsim", "torch"):
            model = load_model(folder, options.device)
            if name == "maxsim":
                integration.enable()
                print(f"nDCG@10 before {held_out_ndcg(model, data):.4f}", flush=True)
            if options.loss == "contrastive":
                step, loss = contrastive(data, options.batch), losses.Contrastive(model)
            else:
                step = distillation(data, options.data, options.batch)
                loss = losses.Distillation(model, normalize_scores=False)
            began = time.perf_counter()
            curves[name] = train(model, loss, step, options.steps, options.rate)
            seconds = time.perf_counter() - began
            integration.disable()
            print(f"{name:<7} loss {curves[name][0]:.4f} to {curves[name][-1]:.4f} in "
                  f"{seconds:.1f} s, nDCG@10 after {held_out_ndcg(model, data):.4f}", flush=True)
    differences = [abs(x - y) for x, y in zip(curves["maxsim"], curves["torch"])]
    print(f"largest difference of a loss {max(differences):.1e}")
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [f"{i + 1},{x:.6f},{y:.6f}\n"
            for i, (x, y) in enumerate(zip(curves["maxsim"], curves["torch"]))]
    (options.out / "losses.csv").write_text("step,maxsim,torch\n" + "".join(rows))


if __name__ == "__main__":
    main()
