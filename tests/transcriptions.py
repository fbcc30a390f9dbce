"""The baselines, each written down slowly from its source: no cache, no batch, one step.

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
    """The step of `dola_greedy_decode` in github.com/voidism/DoLa (transformers-4.28.1).

    There `F.kl_div(log p, m, reduction='none').mean(-1)` is the mean over the vocabulary of
    m (log m - log p): the distribution in the middle weighs, and nothing is rounded.
    """
    out = run(model, tokens, output_hidden_states=True)
    final = out.logits[0, -1].float()
    best, chosen = None, None
    for layer in layers:
        with torch.no_grad():
            early = model.get_output_embeddings()(out.hidden_states[layer][0, -1]).float()
        middle = 0.5 * (final.softmax(-1) + early.softmax(-1))
        terms = []
        for logits in (final, early):
            term = middle * (middle.log() - logits.log_softmax(-1))
            terms.append(torch.where(middle > 0, term, torch.zeros_like(term)).mean())
        distance = 0.5 * (terms[0] + terms[1])
        if best is None or distance > best:  # argmax: the first of equals
            best, chosen = distance, early
    scores = final.log_softmax(-1)  # relative_top_filter
    scores[scores < scores.max() + math.log(plausibility)] = -math.inf
    scores = scores - chosen.log_softmax(-1)
    for token in set(tokens):  # transformers' RepetitionPenaltyLogitsProcessor
        scores[token] = (
            scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
        )
    return scores


def adacad(model, full, bare):
    """The step of `group_decode_fileio_adacad.py` in github.com/HanNight/AdaCAD (MIT)."""
    ours, theirs = last_logits(model, full), last_logits(model, bare)
    p, q = ours.softmax(-1), theirs.softmax(-1)
    m = 0.5 * (p + q)
    alpha = 0.0
    for one in (p, q):
        for token in range(len(m)):
            if one[token] > 0:
                alpha += 0.5 * float(one[token] * (one[token] / m[token]).log())
    return (1 + alpha) * ours - alpha * theirs


def sled(model, tokens, *, layers, rate=2.0, scale=10, steps=10):
    """SLED's step, token by token, as its paper and its authors' code agree on it."""
    out = run(model, tokens, output_hidden_states=True)
    final = out.logits[0, -1].float()
    best = final.argsort(descending=True, stable=True)[:scale].tolist()
    votes = dict.fromkeys(best, 0.0)
    for layer in layers:
        with torch.no_grad():
            early = model.get_output_embeddings()(out.hidden_states[layer][0, -1]).float()
        apart, p = early - final, early.softmax(-1)
        for token in best:
            gradient = p.clone()
            gradient[token] -= 1
            cosine = float(apart @ gradient / (apart.norm() * gradient.norm()))
            votes[token] += max(0.0, cosine) ** 2
    total = sum(votes.values())
    latent = torch.zeros_like(final)
    for token in best:
        latent[token] = votes[token] / total if total else 0.0
    moved = final
    for step in range(steps):
        moved = moved - rate * (1 - step / steps) * (moved.softmax(-1) - latent)
    scores = torch.full_like(final, -math.inf)
    scores[best] = moved[best]
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
    """The text ahead of the prompt, as github.com/jiachangliu/KATEGPT3 puts it together.

    `kNN_preprocessing.py` keeps the neighbors as `torch.topk` gives them, the nearest first;
    `constructPrompt` of `inference/utils.py` joins them in that order.
    """
    query = embed(question)
    near = sorted(examples, key=lambda pair: -float(query @ embed(pair[0])))[:k]
    return "".join(f"Q: {q}\nA: {a}\n\n" for q, a in near)


def decode(step, prompt, *, stop_ids, length):
    """Pick the best token of step(answer so far) until one ends the answer."""
    answer = []
    while len(answer) < length:
        answer.append(int(step(answer).argmax()))
        if answer[-1] in stop_ids:
            break
    return tuple(answer)
