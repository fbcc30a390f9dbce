"""RAD inside your own transformers code: one logits processor, nothing else changes."""

import torch

import trueline as tl

lm = tl.load("smollm2-135m")  # stands for your own model and tokenizer
model, tokenizer = lm.model, lm.tokenizer
space = tl.build(lm, "facts", limit=10)

processor = tl.RAD(space, neutral=True).processor(model, tokenizer)  # neutral: we sample
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
