"""The patterns against Python's own readers, both by `re` and as grammars."""

from __future__ import annotations

import datetime
import ipaddress
import random
import re
import uuid
from decimal import Decimal
from urllib.parse import urlsplit

import pytest

from smcprog import Grammar, SettingError
from smcprog.grammars import patterns

ALL = {
    "date": patterns.date(),
    "time": patterns.time(),
    "time to the minute": patterns.time(seconds=False),
    "time with zone": patterns.time(fraction=True, zone=True),
    "date_time": patterns.date_time(separator=" ", fraction=True, zone=True),
    "email": patterns.email(),
    "hostname": patterns.hostname(),
    "url": patterns.url(),
    "uuid": patterns.uuid(),
    "uuid 4": patterns.uuid(4),
    "ipv4": patterns.ipv4(),
    "ipv6": patterns.ipv6(),
    "integer": patterns.integer(-37, 1234),
    "integer from": patterns.integer(99),
    "number": patterns.number("-1.25", 10, decimals=2),
    "number from": patterns.number(0, decimals=1),
}

SAMPLES = [
    "2024-02-29", "2023-02-29", "0000-01-01", "0004-02-29", "1900-02-29", "23:59:59", "24:00:00",
    "23:60:00", "12:30", "12:30:00Z", "12:30:00.123456+02:00", "12:30:00.1234567Z",
    "2024-02-29 12:30:00Z", "2024-02-29T12:30:00Z", "a@b.org", "a.b+c@x-y.example.com", "a@b",
    "@b.org", "a..b@c.org", "a@-b.org", "a@b.o", "é@b.org", "localhost", "a-.b", "a.b-c.d",
    "1.2.3.4", "256.1.1.1", "01.2.3.4", "1.2.3", "http://a.org",
    "https://1.2.3.4:65535/x/%20?q=1#f", "http://a.org:65536", "ftp://a.org", "http://",
    "http://a b", "http://a.org/é", "http://a.org/%2", "http://u@a.org", "::", "::1", "1::",
    "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6:7",
    "1:2:3:4:5:6:7:8:9", "1::2::3", ":::", "::1.2.3.4", "::ffff:1.2.3.256", "12345::",
    "123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-42d3-a456-426614174000",
    "123e4567e89b42d3a456426614174000", "0", "-0", "7", "-37", "-38", "1234", "1235", "007", "99",
    "98", "100000", "1.5", "-1.25", "-1.26", "10.00", "10.01", "10.", ".5", "-0.0", "0.0", "3.25",
    "1e5", "+1", "٣", "", " 1", "1\n",
]  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_the_mask_engine_and_python_agree(name):
    grammar, expression = Grammar.regex(ALL[name]), re.compile(ALL[name])
    both = [bool(expression.fullmatch(text)) for text in SAMPLES]
    assert [grammar.accepts(text) for text in SAMPLES] == both
    assert any(both) and not all(both)


@pytest.mark.parametrize("name", ALL)
def test_patterns_are_parts_of_larger_ones(name):
    larger = re.compile(rf"<{ALL[name]}>|x")
    grammar = Grammar.regex(larger)
    for text in SAMPLES:
        alone = bool(re.fullmatch(ALL[name], text))
        assert bool(larger.fullmatch(f"<{text}>")) == alone == grammar.accepts(f"<{text}>")
    assert grammar.accepts("x") and not grammar.accepts("<x")


def test_every_day_of_five_centuries_and_no_other():
    date = re.compile(patterns.date())
    for year in [*range(1, 30), *range(1895, 2105), *range(9990, 10000)]:
        for month in range(14):
            for day in (0, 1, 28, 29, 30, 31, 32):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    datetime.date.fromisoformat(text)
                except ValueError:
                    assert not date.fullmatch(text), text
                else:
                    assert date.fullmatch(text), text


def test_times():
    plain = re.compile(patterns.time())
    for hour in range(100):
        for minute in (0, 5, 59, 60, 99):
            text = f"{hour:02}:{minute:02}:{minute:02}"
            assert bool(plain.fullmatch(text)) == (hour < 24 and minute < 60)
    full = re.compile(patterns.date_time(fraction=True, zone=True))
    rng = random.Random(0)
    for _ in range(200):
        offset = datetime.timezone(datetime.timedelta(minutes=rng.randrange(-1439, 1440)))
        moment = datetime.datetime.fromtimestamp(rng.random() * 4e9, tz=offset)
        assert full.fullmatch(moment.isoformat()), moment.isoformat()


def test_addresses_agree_with_python():
    rng = random.Random(0)
    four, six = re.compile(patterns.ipv4()), re.compile(patterns.ipv6())
    valid = 0
    for _ in range(4000):
        groups = [rng.choice(["0", "ab", "ffff", "1", "", ""]) for _ in range(rng.randrange(1, 10))]
        text = ":".join(groups) + rng.choice(["", "", ":1.2.3.4"])
        try:
            ipaddress.IPv6Address(text)
        except ValueError:
            assert not six.fullmatch(text), text
        else:
            assert six.fullmatch(text), text
            valid += 1
        text = ".".join(str(rng.choice([0, 9, 10, 99, 255, 256, 300, "01"])) for _ in range(4))
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            assert not four.fullmatch(text), text
        else:
            assert four.fullmatch(text), text
    assert valid > 100


def test_uuids_and_urls_are_read_by_python():
    for version, made in [
        (1, uuid.uuid1()),
        (4, uuid.uuid4()),
        (5, uuid.uuid5(uuid.NAMESPACE_DNS, "a")),
    ]:
        for text in (str(made), str(made).upper()):
            assert re.fullmatch(patterns.uuid(), text) and re.fullmatch(
                patterns.uuid(version), text
            )
            assert not re.fullmatch(patterns.uuid(7), text)
    for text in filter(re.compile(patterns.url()).fullmatch, SAMPLES):
        parts = urlsplit(text)
        assert parts.scheme in ("http", "https") and parts.hostname
        assert parts.port is None or parts.port <= 65535
    assert re.fullmatch(patterns.url(schemes=("ftp",)), "ftp://a.org/x")


def test_ranges_of_whole_numbers():
    rng = random.Random(0)
    for _ in range(25):
        low, high = sorted(rng.randrange(-1200, 1200) for _ in range(2))
        for least, most in [(low, high), (low, None), (None, high)]:
            pattern = re.compile(patterns.integer(least, most))
            for number in [*range(-1300, 1300), 10**7, -(10**7)]:
                inside = (least is None or least <= number) and (most is None or number <= most)
                assert bool(pattern.fullmatch(str(number))) == inside, (least, most, number)
                assert not pattern.fullmatch(f"0{number}") and not pattern.fullmatch(f"-0{number}")


def test_ranges_of_decimal_numbers():
    rng = random.Random(1)
    for _ in range(16):
        low, high = sorted(
            Decimal(rng.randrange(-3000, 3000)).scaleb(-rng.randrange(4)) for _ in range(2)
        )
        if high - low < Decimal("0.01"):
            continue
        for least, most in [(low, high), (low, None), (None, high)]:
            pattern = re.compile(patterns.number(least, most, decimals=2))
            for digits in range(-3300, 3300, 7):
                for places in range(4):
                    number = Decimal(digits).scaleb(-places)
                    inside = (least is None or least <= number) and (most is None or number <= most)
                    text = f"{number:f}"
                    wanted = inside and places < 3
                    assert bool(pattern.fullmatch(text)) == wanted, (low, high, text)
    assert not re.fullmatch(patterns.number(decimals=2), "-0.00")
    assert re.fullmatch(patterns.number(0.1, 0.3, decimals=1), "0.3")  # a float as it is shown


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patterns.integer(3, 2), "no number from 3 to 2"),
        (lambda: patterns.integer(0.5, 2), "low must be a whole number"),
        (lambda: patterns.integer(0, 10**101), "high must be at most"),
        (lambda: patterns.number("0.1", "0.2", decimals=0), "at most 0 decimals"),
        (lambda: patterns.number(float("nan")), "low must be a number"),
        (lambda: patterns.number("x"), "low must be a number"),
        (lambda: patterns.number(True), "low must be a number"),
        (lambda: patterns.number(decimals=21), "decimals must be at most 20"),
        (lambda: patterns.uuid(9), "version must be at most 8"),
        (lambda: patterns.time(seconds=False, fraction=True), "fraction"),
        (lambda: patterns.date_time(separator="-"), "separator"),
        (lambda: patterns.url(schemes=("HTTP",)), "scheme"),
        (lambda: patterns.url(schemes=()), "schemes"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(call, message):
    with pytest.raises(SettingError, match=message):
        call()
