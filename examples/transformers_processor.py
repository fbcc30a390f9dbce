"""Inside your own transformers code: one logits processor, and nothing else changes."""

import torch

import trueline as tl

lm = tl.load("smollm2-135m")  # stands for your own model and tokenizer
model, tokenizer = lm.model, lm.tokenizer
space = tl.build(lm, "facts", limit=10)

processor = tl.Corrective(space).processor(model, tokenizer)
torch.manual_seed(0)
ids = torch.tensor([space.prompt.encode("Where does swallowed gum go?", tokenizer)])
out = model.generate(
    ids,
    attention_mask=torch.ones_like(ids),
    max_new_tokens=24,
    do_sample=True,
    temperature=0.7,
    logits_processor=[processor],
)
print(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
