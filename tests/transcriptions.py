"""The baselines, each written down slowly from its paper: no cache, no batch, one step.

Like the oracle they share no code with the package. Each takes the tokens of its prompts and
returns the logits its next token is picked from.
"""

import math

import torch


@torch.no_grad()
def run(model, tokens, **options):
    return model(input_ids=torch.tensor([tokens]), use_cache=False, **options)


def last_logits(model, tokens):
    return run(model, tokens).logits[0, -1].float()


def cad(model, full, bare, *, a=0.5):
    return (1 + a) * last_logits(model, full) - a * last_logits(model, bare)


def instructive(model, prompt, noisy, *, eta=0.3):
    return last_logits(model, prompt) - eta * last_logits(model, noisy)


def dola(model, tokens, *, layers, plausibility=0.1, penalty=1.2):
    out = run(model, tokens, output_hidden_states=True)
    final = out.logits[0, -1].float().softmax(-1)
    best, chosen = -1.0, None
    for layer in layers:
        with torch.no_grad():
            logits = model.get_output_embeddings()(out.hidden_states[layer][0, -1]).float()
        early = logits.softmax(-1)
        middle = (final + early) / 2
        distance = 0.0
        for p in (final, early):
            distance += 0.5 * float((p * (p / middle).log()).nan_to_num(0.0).sum())
        if round(distance, 4) > best:  # the earliest of those that are as far as can be
            best, chosen = (
                round(distance, 4),
                logits.log_softmax(-1),
            )  # the logarithm of 0 is not -inf here
    scores = torch.full_like(final, -math.inf)
    for token in range(len(final)):
        if final[token] >= plausibility * final.max():
            scores[token] = final[token].log() - chosen[token]
    for token in set(tokens):
        scores[token] = (
            scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        )
    return scores


def knn_lm(model, tokens, query, keys, next_tokens, *, k=1024, lam=0.5):
    distances = [float(((query - key) ** 2).sum()) for key in keys]
    near = sorted(range(len(keys)), key=lambda i: distances[i])[:k]
    total = sum(math.exp(-distances[i]) for i in near)
    p_knn = torch.zeros(len(last_logits(model, tokens)))
    for i in near:
        p_knn[next_tokens[i]] += math.exp(-distances[i]) / total
    return (lam * p_knn + (1 - lam) * last_logits(model, tokens).softmax(-1)).log()


def kate_text(question, examples, embed, *, k=10):
    """The text ahead of the prompt: the k nearest examples, the nearest last."""
    query = embed(question)
    near = sorted(examples, key=lambda pair: -float(query @ embed(pair[0])))[:k]
    return "".join(f"Q: {q}\nA: {a}\n\n" for q, a in reversed(near))


def decode(step, prompt, *, stop_ids, length):
    """Pick the best token of step(answer so far) until one ends the answer."""
    answer = []
    while len(answer) < length:
        answer.append(int(step(answer).argmax()))
        if answer[-1] in stop_ids:
            break
    return tuple(answer)
