"""Compares cloud-configs before and after a block was put into them, as cloudinit/safeyaml.py reads them."""

import signal
import struct
import sys

import yaml

BLOCK = {"url": "https://s.example/p", "post": "all", "tries": 3}
# Aliases make large values of small texts.
MOST_NODES = 100_000
# Seconds for one comparison, because merges double what is merged. Less than a fuzzer gives an input.
LONGEST = 5


class Loader(yaml.SafeLoader):
    pass


Loader.add_constructor("tag:yaml.org,2002:python/unicode", yaml.SafeLoader.construct_yaml_str)


class TooLarge(BaseException):
    """Nothing that another handler of errors takes."""


def give_up(_signal, _frame):
    raise TooLarge


def plain(value, left, around=()):
    """The value as something that can be compared, NaN and cycles too."""
    left[0] -= 1
    if left[0] < 0:
        raise TooLarge
    if id(value) in around:
        return "cycle"
    around = (*around, id(value))
    if isinstance(value, dict):
        return {repr(key): plain(item, left, around) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, left, around) for item in value]
    return repr(value)


def wrong(before, after):
    try:
        expect = yaml.load(before, Loader)
    except Exception:
        # cloud-init drops it, with a block or without.
        return ""
    try:
        found = yaml.load(after, Loader)
    except Exception as error:
        return f"it is not understood any more: {error!r}"
    if not isinstance(found, dict):
        return f"it is {type(found)}"
    if expect is None:
        expect = {}
    if not isinstance(expect, dict):
        return f"it was {type(expect)}"
    if found.pop("phone_home", None) != BLOCK:
        return "it has another block"
    expect.pop("phone_home", None)
    is_same = plain(expect, [MOST_NODES]) == plain(found, [MOST_NODES])
    return "" if is_same else f"it is {found!r}, and was {expect!r}"


def text():
    length = sys.stdin.buffer.read(4)
    if len(length) < 4:
        sys.exit()
    return sys.stdin.buffer.read(struct.unpack("<I", length)[0]).decode()


def answer(before, after):
    signal.alarm(LONGEST)
    try:
        return wrong(before, after)
    except TooLarge:
        return ""
    finally:
        signal.alarm(0)


signal.signal(signal.SIGALRM, give_up)
while True:
    reply = answer(text(), text()).encode("utf-8", "replace")
    sys.stdout.buffer.write(struct.pack("<I", len(reply)) + reply)
    sys.stdout.buffer.flush()
