"""Ground a model in a file of your own: write it, build a space, ask, see who spoke."""

import json
from pathlib import Path

import trueline as tl

FACTS = [
    {
        "id": "returns",
        "question": "How long can I return an order?",
        "answers": ["Orders can be returned within 45 days of delivery."],
        "wrong_answers": ["Orders can be returned within 14 days of delivery."],
        "source": "returns policy, section 2",
    },
    {
        "id": "shipping",
        "question": "Do you ship to islands?",
        "answers": ["Yes, we ship to islands; it takes two days longer."],
        "wrong_answers": ["No, we only ship to the mainland."],
        "source": "shipping policy, section 1",
    },
]

Path("policy.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in FACTS), "utf-8")
lm = tl.load("smollm2-135m")
space = tl.build(lm, "policy.jsonl", out="policy.space")

question = "Within how many days can an order be returned?"
greedy = tl.generate(lm, tl.Greedy(space.prompt), question, max_new_tokens=24)
answer = tl.generate(lm, tl.Corrective(space), question, max_new_tokens=24, trace=True)
print("greedy:    ", greedy.text)
print("corrective:", answer.text)
for one in answer.sources:
    print(f"{one.share:.0%} by {one.example} ({one.source}): {one.answer}")
answer.explain(beside=greedy).save("policy.html")
