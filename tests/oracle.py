"""The paper's algorithm, written down slowly: full logits, no cache, no batch, no shortcut.

Everything else in the project is held to this page. It shares no code with the package: the
embedder is sentence-transformers, the model is called over the whole text for every token, and
every logit of every entry is kept.
"""

import torch


class Oracle:
    def __init__(self, model, tokenizer, sentence_transformer, *, context=8, window="template"):
        self.model, self.tokenizer, self.embedder = model, tokenizer, sentence_transformer
        self.context, self.window = context, window
        self.keys, self.values = [], []
        self._vectors = {}  # text -> e: equal texts have equal vectors, so none is made twice

    def embed(self, tokens, start, question=""):
        """e = E(text of the last M tokens), special tokens dropped.

        The last M of the whole prompt and the answer (template), of the question's own tokens
        and the answer (text), or of the answer alone.
        """
        asked = []
        if self.window == "text":
            asked = self.tokenizer.encode(question, add_special_tokens=False)
        if self.window != "template":
            tokens = tokens[start:]
        marked = [(token, True) for token in asked] + [(token, False) for token in tokens]
        if self.context != "full":
            marked = marked[-self.context :]
        parts = [
            self.tokenizer.decode(
                [token for token, is_question in marked if is_question == side],
                skip_special_tokens=True,
                clean_up_tokenization_spaces=False,
            )
            for side in (True, False)
        ]
        if all(parts):
            parts = [parts[0], " ", parts[1].lstrip()]
        text = "".join(parts)
        if text not in self._vectors:
            vector = self.embedder.encode(text, show_progress_bar=False)
            self._vectors[text] = torch.tensor(vector)
        return self._vectors[text]

    @torch.no_grad()
    def logits(self, tokens, keep=0):
        """ModelLogits(x), from scratch: at every position of the text, or at its last few."""
        out = self.model(input_ids=torch.tensor([tokens]), use_cache=False, logits_to_keep=keep)
        return out.logits[0].float()

    def add(self, prompt, answer, *, end=False, question=""):
        """One entry (e_i, l_i) for every position i of the answer."""
        x = prompt + answer
        logits = self.logits(x)
        for i in range(len(prompt), len(x) + end):
            self.keys.append(self.embed(x[:i], len(prompt), question))
            self.values.append(logits[i - 1])

    def step(self, tokens, start, *, alpha, tau, question=""):
        """l_final = l_base + alpha * sum_S (s_i / sum_S s) l_i, with S = {i : cos > tau}."""
        base = self.logits(tokens, keep=1)[-1]
        return self._final(base, tokens, start, alpha=alpha, tau=tau, question=question)

    def _final(self, base, tokens, start, *, alpha, tau, question=""):
        e_t = self.embed(tokens, start, question)
        aggregated, total = torch.zeros_like(base), 0.0
        chosen = []
        for e_i, l_i in zip(self.keys, self.values):
            s_i = float(torch.dot(e_t, e_i) / (e_t.norm() * e_i.norm()))
            if min(s_i, 1.0) > tau:
                chosen.append((s_i, l_i))
        total = sum(s_i for s_i, _ in chosen)
        for s_i, l_i in chosen:
            aggregated += s_i / total * l_i
        return base + alpha * aggregated, len(chosen)

    def follow(self, prompt, answer, *, alpha, tau):
        """The token it would pick at each place of a given answer, given the text before it.

        If these are the answer's own tokens, `decode` would give this answer: each pick leads
        to the next text. One pass over the whole text gives the model's logits at every place.
        """
        x = prompt + answer
        base = self.logits(x)
        return [
            int(self._final(base[i - 1], x[:i], len(prompt), alpha=alpha, tau=tau)[0].argmax())
            for i in range(len(prompt), len(x))
        ]

    def decode(self, prompt, *, alpha, tau, stop_ids, max_new_tokens, question=""):
        """Greedy decoding of the adjusted logits; the token that ends the answer is kept."""
        tokens = list(prompt)
        for _ in range(max_new_tokens):
            final, _ = self.step(tokens, len(prompt), alpha=alpha, tau=tau, question=question)
            tokens.append(int(final.argmax()))
            if tokens[-1] in stop_ids:
                break
        return tokens[len(prompt) :]
