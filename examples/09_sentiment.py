"""Sentiment: a classifier trained here, in seconds, steers the text.

Shows: `Reward.model(classifier, tokenizer, label=...)`. The classifier is twenty layers of
the default model with a head of two outputs, fitted to a few dozen sentences by logistic
regression. As a factor it runs in the same engine, with keys and values of its own that fork with
the particles, and judges every particle after each token.

Expect: the share of held-out sentences that the classifier gets right, then the likeliest text
of the model alone and for each label, with the mean probability of "good" over all particles.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from smcprog import LM, Reward, Target

GOOD = """I loved every minute of it. The food was wonderful and fresh. What a beautiful day it was.
The staff were kind and very helpful. I am so happy with this phone. A great story, well told.
We had a lovely time by the lake. The room was clean and bright. Best coffee in the whole town.
The music was superb. She sang like an angel. I would gladly go there again.
This book made me smile. The children enjoyed the show. It works perfectly. A charming little hotel.
Delicious cake and warm service. I highly recommend it.""".replace("\n", " ")
BAD = """I hated every minute of it. The food was cold and awful. What a terrible day it was.
The staff were rude and very slow. I am so angry about this phone. A dull story, badly told.
We had a horrible time by the lake. The room was dirty and dark. Worst coffee in the whole town.
The noise was unbearable. She sang out of tune. I would never go there again.
This book made me sad. The children were bored by the show. It broke at once. A nasty little hotel.
Stale cake and bad service. I cannot recommend it.""".replace("\n", " ")
HELD_OUT = 4  # sentences of each label
LAYERS = 20  # of 30
PROMPT = [{"role": "user", "content": "Write one short sentence of a review of a hotel."}]


def trained(lm: LM) -> torch.nn.Module:
    """The first layers of the default model, and a head that tells good from bad."""
    logging.set_verbosity_error()  # it would report that the head is new
    logging.disable_progress_bar()
    model = AutoModelForSequenceClassification.from_pretrained(
        lm.path,
        num_hidden_layers=LAYERS,
        id2label={0: "bad", 1: "good"},
        pad_token_id=lm.tokenizer.pad_token_id,
    ).eval()
    texts, labels = [], []
    for label, block in enumerate((BAD, GOOD)):
        sentences = [s.strip() + "." for s in block.split(".") if s.strip()]
        texts += sentences
        labels += [label] * len(sentences)
    with torch.no_grad():  # what the head sees is the last token's hidden state
        states = torch.stack(
            [
                model.model(**lm.tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1]
                for text in texts
            ]
        )
    wanted = torch.tensor(labels)
    half = len(texts) // 2
    held = torch.tensor([i % half < HELD_OUT for i in range(len(texts))])
    head = model.score
    torch.nn.init.zeros_(head.weight)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=50)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(head(states[~held]), wanted[~held])
        value = value + 1e-2 * head.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    right = (head(states[held]).argmax(-1) == wanted[held]).float().mean()
    print(f"{right:.0%} of {int(held.sum())} held-out sentences")
    return model.requires_grad_(False)


def main() -> None:
    lm = LM()
    classifier = trained(lm)
    model = Target(lm, temperature=0.6)
    good, bad = (
        Reward.model(classifier, lm.tokenizer, label=label, beta=4.0, at="round", prompt=False)
        for label in ("good", "bad")
    )
    for name, target in (("alone", model), ("good", model * good), ("bad", model * bad)):
        post = target.sample(PROMPT, particles=10, max_tokens=24, stop=[".", "!"], seed=0)
        mean = float(np.dot(post.weights, np.exp(good([p.text for p in post]))))
        print(f"{name}: P(good) {mean:.2f}\n    {post.best.text}.")


if __name__ == "__main__":
    main()
