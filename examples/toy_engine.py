"""An engine of one's own in which verified answers speak (docs/engine-authors.md)."""

import torch

import trueline as tl
from trueline.corrective.votes import lift_rows


class ToyEngine:
    """Greedy decoding of several requests at once; `model` gives the logits behind tokens."""

    def __init__(self, model, tokenizer, stop_ids):
        self.model, self.tokenizer, self.stop_ids = model, tokenizer, stop_ids

    def run(self, requests, length):
        """The answers to some requests, each a prompt of tokens and a method or None."""
        begun = [  # once a request; None where nothing is in scope
            method and method.corrector(self.tokenizer, stop_ids=self.stop_ids).begin(prompt)
            for prompt, method in requests
        ]
        outputs, live = [[] for _ in requests], list(range(len(requests)))
        while live:
            logits = torch.stack([self.model(requests[row][0] + outputs[row]) for row in live])
            if any(begun[row] for row in live):  # at every token; the rest is the engine's own
                said = [outputs[row] for row in live]
                logits = lift_rows([begun[row] for row in live], said, logits).logits
            for row, token in zip(live, logits.argmax(-1).tolist(), strict=True):
                outputs[row].append(token)
            live = [row for row in live if outputs[row][-1] not in self.stop_ids]
            live = [row for row in live if len(outputs[row]) < length]
        return outputs


if __name__ == "__main__":
    lm, method = tl.load("smollm2-135m"), tl.Corrective(tl.build(None, "facts", limit=10))
    prompt = method.space.prompt.encode("Where does swallowed gum go?", lm.tokenizer)
    toy = ToyEngine(lambda ids: lm.model(torch.tensor([ids])).logits[0, -1], lm, lm.stop_ids)
    with torch.inference_mode():
        for answer in toy.run([(prompt, None), (prompt, method)], 24):
            print(lm.decode(answer))
