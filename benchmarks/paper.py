"""The paper's procedure as it is described: no cache, all logits kept, one row, one encode."""

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

import trueline as tl
from trueline.engines.models import resolve


class PaperDecoder:
    """At every step: the model over the whole text, `encode` of the window, a sum of logits."""

    def __init__(self, lm, space, *, alpha=0.5, tau=0.7):
        self.lm, self.alpha, self.tau = lm, alpha, tau
        self.embedder = SentenceTransformer(
            str(resolve("all-minilm-l6-v2", "embedder").folder), device="cpu"
        )
        self.keys = np.asarray(space.entries.truthful.keys, np.float32)
        hidden = torch.from_numpy(np.asarray(space.entries.truthful.values, np.float32))
        self.logits = torch.cat([lm.head(some) for some in hidden.split(256)])

    @torch.no_grad()
    def steps(self, question):
        """Yields the tokens of the answer, without an end."""
        tokenizer = self.lm.tokenizer
        tokens = tl.Prompt().encode(question, tokenizer)
        while True:
            ids = torch.tensor([tokens])
            base = self.lm.model(input_ids=ids, use_cache=False).logits[0, -1]
            window = tokenizer.decode(tokens[-8:], skip_special_tokens=True)
            query = self.embedder.encode(window, show_progress_bar=False)
            cosines = self.keys @ query
            near = np.flatnonzero(cosines > self.tau)
            if len(near):
                weights = torch.from_numpy(cosines[near] / cosines[near].sum())
                base = base + self.alpha * (weights[:, None] * self.logits[near]).sum(0)
            tokens.append(int(base.argmax()))
            yield tokens[-1]
