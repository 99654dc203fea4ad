"""Instructions for a target to answer, so that its text is varied without any data set."""

from __future__ import annotations

import numpy as np

__all__ = ["instruction"]

_TASKS = (
    "Explain {subject} to a child of ten.",
    "What is {subject}, and why does it matter?",
    "Write a short story about {subject}.",
    "Write a poem of three stanzas about {subject}.",
    "Give me five facts about {subject}.",
    "List the advantages and disadvantages of {subject}.",
    "Write a friendly letter to a colleague about {subject}.",
    "Write a dialogue between two friends about {subject}.",
    "Summarise in one paragraph what people should know about {subject}.",
    "How would you teach a class on {subject}? Give a plan with headings.",
    "Describe the history of {subject} in {count} sentences.",
    "Write a news report of about {count}0 words on {subject}.",
    "Ask me {count} quiz questions about {subject} and give the answers.",
    "Compare {subject} with {other}.",
    "Which is more useful, {subject} or {other}? Argue your case.",
    "Describe {subject} as a JSON object with the keys name, kind and description. "
    "Answer with the JSON only.",
    'Make a JSON list of {count} objects about {subject}, each with "title" and "year".',
    "Make a Markdown table with {count} rows about {subject}.",
    "Write a Python function that has to do with {subject}, with a docstring.",
    "Translate into {language}: I have read a good book about {subject} and {other}.",
    "Translate into English the {language} words for: {subject}, {other}.",
    "I need a plan for a day around {subject}. What should I do?",
    "My friend does not believe in {subject}. What can I say?",
    "Rewrite this more politely: I am tired of hearing about {subject}, talk about {other}!",
    "Correct the mistakes: 'Me and him was learn about {subject} since {count} year.'",
    "{count} people share {number} {things}. How many does each get, and how many are left?",
    "Anna buys {count} {things} at {number} cents each and pays with 20 dollars. "
    "How much change does she get? Think step by step.",
    "What is {number} plus {number2}, and what is {count} times {number}?",
    "A train covers {number} miles in {count} hours. What is its mean speed?",
    "Invent a product that combines {subject} and {other}, and advertise it.",
    "Is this review good or bad? 'The talk on {subject} was {mood}.' Answer in one word.",
    "Tell me a joke about {subject}.",
    "Who are three people known for {subject}?",
    "Give step-by-step instructions for getting started with {subject}.",
    "Pretend to be an expert on {subject}. Introduce yourself.",
    "What questions should I ask at a job interview about {subject}?",
)
_SUBJECTS = (
    "gravity", "volcanoes", "the water cycle", "photosynthesis", "black holes", "the Moon",
    "electric cars", "solar power", "vaccines", "sleep", "healthy food", "yoga", "running",
    "chess", "football", "the Olympic Games", "jazz", "painting", "photography", "opera",
    "cooking pasta", "baking bread", "growing tomatoes", "beekeeping", "coffee", "chocolate",
    "the Roman Empire", "ancient Egypt", "the French Revolution", "the printing press",
    "democracy", "inflation", "saving money", "starting a company", "remote work", "email",
    "artificial intelligence", "computer security", "sorting algorithms", "databases",
    "prime numbers", "probability", "geometry", "Shakespeare", "science fiction", "fairy tales",
    "dragons", "robots", "a lost dog", "a lighthouse", "an old bridge", "the last library",
    "a trip to Japan", "life in Paris", "the Amazon rainforest", "whales", "penguins", "spiders",
    "cats", "horses", "climate change", "plastic waste", "friendship", "fear of the dark",
    "learning a language", "raising children", "old age", "public transport", "space travel",
    "the human heart", "antibiotics", "earthquakes", "deserts", "the stock market", "tea",
    "medieval castles", "bicycles", "maps", "clocks", "glass", "paper", "rivers", "music theory",
    "the violin", "knitting", "first aid", "camping", "sailing", "mountains", "winter",
)  # fmt: skip
_LANGUAGES = ("French", "German", "Spanish", "Italian", "Portuguese", "Dutch", "Latin")
_THINGS = ("apples", "pencils", "stickers", "cookies", "marbles", "books", "tickets")
_MOODS = ("far too long", "a delight", "not bad at all", "dull and confused", "worth every minute")


def instruction(index: int, seed: int = 0) -> str:
    """One of endlessly many instructions, made of built-in pieces."""
    rng = np.random.default_rng([seed, index])
    first, second = rng.choice(len(_SUBJECTS), size=2, replace=False)
    return str(rng.choice(_TASKS)).format(
        subject=_SUBJECTS[first],
        other=_SUBJECTS[second],
        count=rng.integers(2, 10),
        number=rng.integers(11, 100),
        number2=rng.integers(100, 1000),
        language=rng.choice(_LANGUAGES),
        things=rng.choice(_THINGS),
        mood=rng.choice(_MOODS),
    )
