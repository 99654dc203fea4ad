"""The notebook view: well-formed, escaped, self-contained."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from smcprog.smc.posterior import Posterior

from .synthetic import dead_posterior, posterior


class Reader(HTMLParser):
    """Checks that tags close in order, and collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(post: Posterior) -> Reader:
    reader = Reader()
    reader.feed(post._repr_html_())
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("post", [posterior(1, 1), posterior(16, 12), dead_posterior(12)])
def test_only_harmless_tags(post: Posterior) -> None:
    reader = read(post)
    assert reader.tags <= {"div", "span", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert reader.attributes <= {"style", "colspan", "title"}
    source = post._repr_html_()
    assert "url(" not in source and "http" not in source
    # What could reorder or end the text around it is shown by name.
    assert not set(source) & set("\x00\x1b\u202e")
    source.encode("utf-8")


def test_texts_are_escaped_and_shown_whole() -> None:
    post = posterior(4, 3)
    reader = read(post)
    assert '<script>alert(1)</script> & "quotes"' in reader.text
    assert "line one\n  line two" in reader.text


def test_numbers() -> None:
    post = posterior(16, 12)
    text = read(post).text
    assert f"{abs(post.log_evidence):.4f}" in text
    assert "(approximate)" in text
    assert f"{post.ess:.3g} of 16" in text
    assert "seed 0" in text
    assert "and 6 more, weight" in text
    assert "(approximate)" not in read(posterior(16, 12, scheme="multinomial")).text


def test_long_texts_say_that_they_are_cut() -> None:
    assert "more characters)" in read(posterior(6, 2)).text


def test_all_dead() -> None:
    text = read(dead_posterior()).text
    assert "Every particle is dead." in text
    assert "\u2212\u221e" in text
