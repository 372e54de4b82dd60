"""A late-interaction encoder from nothing: a WordPiece vocabulary, a small BERT, a projection."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import BertConfig, BertModel

PAD, UNKNOWN, QUERY, DOCUMENT = "[PAD]", "[UNK]", "[Q]", "[D]"


def train_tokenizer(texts: list[str], size: int) -> Tokenizer:
    """Learns a vocabulary of parts of words."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[PAD, UNKNOWN, QUERY, DOCUMENT],
        show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Encoder(torch.nn.Module):
    """Texts in, normalised token embeddings and masks out."""

    def __init__(
        self, tokenizer: Tokenizer, layers: int = 4, hidden: int = 256, dim: int = 128,
        query_length: int = 32, document_length: int = 128,
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.lengths = {QUERY: query_length, DOCUMENT: document_length}
        self.bert = BertModel(BertConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=hidden, num_hidden_layers=layers,
            num_attention_heads=hidden // 64, intermediate_size=4 * hidden,
            max_position_embeddings=document_length), add_pooling_layer=False)
        self.projection = torch.nn.Linear(hidden, dim, bias=False)

    def forward(self, texts: list[str], side: str) -> tuple[Tensor, Tensor]:
        """Embeddings ``[texts, tokens, dim]`` and a mask ``[texts, tokens]``.

        The first token says which side a text is on; like padding, it is not scored.
        """
        first = self.tokenizer.token_to_id(side)
        found = self.tokenizer.encode_batch(texts)
        rows = [torch.tensor([first, *x.ids[: self.lengths[side] - 1]]) for x in found]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        ids = ids.to(self.projection.weight.device)
        valid = ids != self.tokenizer.token_to_id(PAD)
        states = self.bert(ids, attention_mask=valid).last_hidden_state
        tokens = torch.nn.functional.normalize(self.projection(states), dim=-1)
        scored = valid.clone()
        scored[:, 0] = False
        return tokens, scored

    @torch.no_grad()
    def encode(self, texts: list[str], side: str, batch: int = 64) -> tuple[Tensor, Tensor]:
        """As calling it, in batches and without gradients."""
        was_training = self.training
        self.eval()
        parts = [self(texts[i : i + batch], side) for i in range(0, len(texts), batch)]
        self.train(was_training)
        longest = max(mask.shape[1] for _, mask in parts)
        tokens, masks = [], []
        for token, mask in parts:
            missing = longest - mask.shape[1]
            tokens.append(torch.nn.functional.pad(token, (0, 0, 0, missing)))
            masks.append(torch.nn.functional.pad(mask, (0, missing)))
        return torch.cat(tokens), torch.cat(masks)
