"""Which candidate answer does a method find most probable? Fits any multiple-choice test."""

import trueline as tl

lm = tl.load("smollm2-135m")
space = tl.build(lm, "facts", limit=10)
question = "Where does swallowed chewing gum go?"
candidates = [
    "It passes through the body within days.",
    "It stays in the stomach for seven years.",
]
for method in (tl.Greedy(space.prompt), tl.Corrective(space), tl.KATE(space, k=2)):
    scores = tl.score(lm, method, question, candidates)
    best = max(zip(scores, candidates, strict=True))[1]
    print(f"{method.name:10} {best}  ({', '.join(f'{score:.1f}' for score in scores)})")
