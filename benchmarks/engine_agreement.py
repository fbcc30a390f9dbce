"""What 4 bits and another engine do to answers: llama.cpp against transformers, same weights.

    python benchmarks/engine_agreement.py [--questions 40] [--tokens 32]

Both read SmolLM2-135M from the same GGUF file: llama.cpp as it is, transformers as the float32
its 4-bit weights stand for. Writes docs/results/engine_agreement.md; the last line is JSON.
"""

import argparse
import copy
import json
from datetime import date
from pathlib import Path
from statistics import mean

import measure
import torch
from measure import MODEL, questions

import trueline as tl
from trueline.examples import read_examples
from trueline.lab.statistics import share_interval
from trueline.rad.build import tokenized_answers

PAGE = Path(__file__).parent.parent / "docs" / "results" / "engine_agreement.md"
NOISES = (0.01, 0.02, 0.05, 0.1)  # of each weight matrix's own deviation
STATE_ANSWERS = 16
ROWS = 8
WHOLE = 64  # tokens that every verified answer ends within


def main():
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    measure.pin(options.threads)
    ours, theirs = tl.load(MODEL, engine="llama.cpp"), tl.load(MODEL)
    covered = [example.question for example in read_examples("facts:ground")]
    found = {
        "noise": noise(ours, covered[:ROWS]),
        "states": states(ours, theirs),
        "in scope": in_scope(ours, theirs, covered[: options.questions]),
        "out of scope": out_of_scope(
            ours, theirs, questions(options.questions), options.tokens
        ),
    }
    where = measure.where(options.threads)
    PAGE.write_text(page(found, options, where), "utf-8")
    print(page(found, options, where))
    print(json.dumps({"benchmark": "engine_agreement", **found, "where": where}))


def noise(lm, asked):
    """How far a row's logits move with the rows beside it, and whether equal rows differ."""
    contexts = [tl.Prompt().encode(question, lm.tokenizer) for question in asked]
    together = lm.start().join(contexts).logits
    alone = torch.cat([lm.start().join([context]).logits for context in contexts])
    twins = lm.start().join([contexts[0]] * 4).logits
    reading = lm.start()
    reading.join([contexts[0][:-4]])
    for token in contexts[0][-4:]:
        stepwise = reading.extend([token]).logits
    return {
        "logit_deviation": round(float(alone.std()), 2),
        "largest_move_in_a_batch": round(float((together - alone).abs().max()), 4),
        "largest_move_token_by_token": round(float((stepwise - alone[:1]).abs().max()), 4),
        "equal_rows_are_bit_equal": all(torch.equal(twins[0], twin) for twin in twins),
    }


def states(ours, theirs):
    """Last states of verified answers: the other engine's, and those of weights with noise."""
    examples = read_examples("facts:ground")[:STATE_ANSWERS]
    answers = tokenized_answers(theirs, examples, tl.Prompt(), wrong=False)[0][:STATE_ANSWERS]
    own = _states(theirs, answers)
    found = {"llama.cpp, 4 bits": _likeness(theirs, own, _states(ours, answers))}
    torch.manual_seed(measure.SEED)
    for share in NOISES:
        model = copy.deepcopy(theirs.model)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 2:
                    weight += torch.randn_like(weight) * weight.std() * share
        noisy = _states(tl.LanguageModel(model, theirs.tokenizer), answers)
        found[f"weights with {share:.0%} noise"] = _likeness(theirs, own, noisy)
    return found


def _states(lm, answers):
    parts = []
    for answer in answers:
        reading = lm.start(states=True)
        first = reading.join([answer.prompt]).hidden
        parts.append(torch.cat([first, reading.extend_many([answer.tokens[:-1]]).hidden[0]]))
    return torch.cat(parts)  # (tokens, d)


def _likeness(lm, own, other):
    cosines = torch.cosine_similarity(own, other)
    same = lm.head(own).argmax(-1) == lm.head(other).argmax(-1)
    return {
        "tokens": len(own),
        "mean_cosine": round(float(cosines.mean()), 4),
        "least_cosine": round(float(cosines.min()), 4),
        "same_best_token": round(float(same.float().mean()), 3),
    }


def in_scope(ours, theirs, asked):
    """Corrective answers to covered questions: how many are the same text."""
    method = tl.Corrective(tl.build(None, "facts"))
    sides = [_answers(lm, method, asked, WHOLE) for lm in (ours, theirs)]
    verified = {example.question: example.answers for example in read_examples("facts:ground")}
    return {
        "questions": len(asked),
        "same_text": mean(a.text == b.text for a, b in zip(*sides, strict=True)),
        "verified_llama_cpp": _told(sides[0], verified),
        "verified_transformers": _told(sides[1], verified),
    }


def _told(answers, verified):
    return mean(answer.text in verified[answer.question] for answer in answers)


def out_of_scope(ours, theirs, asked, tokens):
    """Greedy answers: where they part, and how near the two best logits lay there."""
    sides = [_answers(lm, tl.Greedy(), asked, tokens) for lm in (ours, theirs)]
    pairs = list(zip(*sides, strict=True))
    steps = [step for answer in sides[1] for step in _forced(ours, theirs, answer)]
    other = [step for step in steps if not step["same"]]
    parted = [_first_difference(a.token_ids, b.token_ids) for a, b in pairs]
    noise = sorted(step["move"] for step in steps)[int(0.99 * len(steps))]
    return {
        "questions": len(asked),
        "same_text": mean(at is None for at in parted),
        "first_difference_median": sorted(tokens if at is None else at for at in parted)[
            len(parted) // 2
        ],
        "steps": len(steps),
        "same_best_token": round(mean(step["same"] for step in steps), 4),
        "engine_noise": round(noise, 3),
        "steps_nearer_than_noise": sum(step["gap"] < noise for step in steps),
        "other_tokens": len(other),
        "other_tokens_nearer_than_noise": sum(step["gap"] < noise for step in other),
        "largest_gap_of_another_token": round(max((s["gap"] for s in other), default=0.0), 3),
    }


def _answers(lm, method, asked, tokens):
    return tl.generate(lm, method, asked, max_new_tokens=tokens, batch_size=ROWS)


def _forced(ours, theirs, answer):
    """Both engines along the tokens of transformers: what each would pick.

    `gap` is how far transformers' best logit lies before its second; `move` how far the
    difference of these two logits moves from one engine to the other.
    """
    readings = [ours.start(), theirs.start(states=True)]
    tokens = tl.Prompt().encode(answer.question, ours.tokenizer)
    found = [readings[0].join([tokens]).logits, theirs.head(readings[1].join([tokens]).hidden)]
    for token in answer.token_ids:
        best = found[1][0].topk(2)
        gap = float(best.values[0] - best.values[1])
        here = found[0][0][best.indices]
        yield {
            "same": int(found[0][0].argmax()) == int(best.indices[0]),
            "gap": gap,
            "move": abs(float(here[0] - here[1]) - gap),
        }
        found = [
            readings[0].extend([token]).logits,
            theirs.head(readings[1].extend([token]).hidden),
        ]


def _first_difference(first, second):
    pairs = enumerate(zip(first, second, strict=False))
    here = next((at for at, (a, b) in pairs if a != b), None)
    return min(len(first), len(second)) if here is None and first != second else here


def _share(part, count):
    """A share with Wilson's interval."""
    found = share_interval(round(part * count), count)
    return f"{part:.1%} ({found.low:.0%} to {found.high:.0%}) of {count}"


def page(found, options, where):
    """The figures as a document."""
    noise, inside, outside = found["noise"], found["in scope"], found["out of scope"]
    rows = [
        f"| {name} | {one['mean_cosine']} | {one['least_cosine']} | {one['same_best_token']:.1%} |"
        for name, one in found["states"].items()
    ]
    return f"""# What another engine does to answers

`python benchmarks/engine_agreement.py --questions {options.questions} --tokens {options.tokens}`,
{date.today()}, {where["processor"]}, {where["threads"]} threads. SmolLM2-135M from one GGUF file: llama.cpp reads its
4-bit weights as they are and rounds states to 8 bits on the way; transformers reads the float32 they stand for.

| | llama.cpp against transformers |
| --- | --- |
| in scope, corrective: same text | {_share(inside["same_text"], inside["questions"])} |
| in scope: one of its verified answers to the letter, llama.cpp | {_share(inside["verified_llama_cpp"], inside["questions"])} |
| in scope: the same, transformers | {_share(inside["verified_transformers"], inside["questions"])} |
| out of scope, greedy: same text of at most {options.tokens} tokens | {_share(outside["same_text"], outside["questions"])} |
| first token that differs, median ({options.tokens}: none) | {outside["first_difference_median"]} |
| along the same text, same best token | {outside["same_best_token"]:.2%} of {outside["steps"]} steps |
| noise: 99 % of steps move the lead of the best token by less than | {outside["engine_noise"]} |
| steps whose two best logits lie closer than that | {outside["steps_nearer_than_noise"]} |
| steps with another best token / of these, closer than that | {outside["other_tokens"]} / {outside["other_tokens_nearer_than_noise"]} |

In scope answers may have {WHOLE} tokens, within which every verified answer ends; at 16, most would be cut before their end and so be no verified answer to the letter. What is told there is lifted until it leads by far more than
the engines differ. Out of scope the answer is each engine's own: where the two best logits lie closer than that difference either may win (the last row), and from there on the two read different texts.

Last states of {next(iter(found["states"].values()))["tokens"]} tokens of verified answers, against those of transformers, and of weights with noise:

| | mean cosine | least | same best token |
| --- | --- | --- | --- |
{chr(10).join(rows)}

Inside llama.cpp, a row's logits (deviation {noise["logit_deviation"]}) move by at most {noise["largest_move_in_a_batch"]} when {ROWS} rows are read together instead of alone, and by
{noise["largest_move_token_by_token"]} when the end of a prompt is read token by token. Equal rows are {"equal to the bit" if noise["equal_rows_are_bit_equal"] else "not equal to the bit"}.
"""


if __name__ == "__main__":
    main()
