"""Retrieval-Augmented Decoding (arXiv 2508.02184): build its space, see what it looks up."""

import trueline as tl

lm = tl.load("smollm2-135m")
# The model runs over every truthful answer; its state at each token is kept with the embedding
# of the 8 tokens before. window="text": of question and answer, without the chat template.
space = tl.build(lm, "facts", limit=20, context=8, window="text", out="rad.space")
print(space)

questions = [space.examples[0].question, "What is the tallest mountain on Earth?"]
found = tl.compare(lm, [tl.Greedy(space.prompt), tl.RAD(space)], questions, max_new_tokens=24)
for name, run in found.items():
    for answer in run.answers:
        print(f"{name:7} {answer.text}")

answer = tl.generate(lm, tl.RAD(space), questions[0], max_new_tokens=12, trace=True)
for step in answer.trace:
    print(f"{step.text!r:12} {step.hits:4} hits near to {step.window!r}")
