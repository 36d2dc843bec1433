"""Write a synthetic text corpus: simple sentences and sums, the same bytes for the same seed.

    python scripts/make_corpus.py --bytes 1000000 --out corpus.txt

A small model learns its spelling and grammar in a few dozen steps, so that a falling loss shows.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ANIMALS = ["fox", "owl", "hare", "mole", "crane", "otter", "toad", "heron", "stoat", "wren"]
THINGS = ["river", "stone", "lamp", "basket", "ladder", "kettle", "garden", "bridge", "wagon", "mirror"]
QUALITIES = ["small", "quiet", "green", "old", "bright", "heavy", "round", "patient", "narrow", "warm"]
DEEDS = ["finds", "carries", "watches", "mends", "paints", "borrows", "hides", "follows", "counts", "keeps"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def statement(draw: random.Random) -> str:
    """A subject, a verb, an object."""
    return f"the {draw.choice(QUALITIES)} {draw.choice(ANIMALS)} {draw.choice(DEEDS)} the {draw.choice(QUALITIES)} {draw.choice(THINGS)}."


def place(draw: random.Random) -> str:
    """Two things and where they are."""
    return f"the {draw.choice(THINGS)} is {draw.choice(['near', 'under', 'behind', 'above'])} the {draw.choice(THINGS)}."


def total(draw: random.Random) -> str:
    """A sum in digits; it is right."""
    left, right = draw.randrange(100), draw.randrange(100)
    return f"{left} + {right} = {left + right}."


def count(draw: random.Random) -> str:
    """A sum in words; it is right."""
    left, right = draw.randrange(7), draw.randrange(6)
    return f"{NUMBERS[left]} and {NUMBERS[right]} make {NUMBERS[left + right]}."


SENTENCES: tuple[Callable[[random.Random], str], ...] = (statement, statement, place, total, count)


def lines(seed: int) -> Iterator[str]:
    """Endless paragraphs of three to six sentences, one a line."""
    draw = random.Random(seed)
    while True:
        yield " ".join(draw.choice(SENTENCES)(draw) for _ in range(draw.randint(3, 6))) + "\n"


def corpus(size: int, seed: int) -> bytes:
    """Whole lines, at least ``size`` bytes of ASCII."""
    text, length = [], 0
    for line in lines(seed):
        if length >= size:
            break
        text.append(line)
        length += len(line)
    return "".join(text).encode("ascii")


def main(argv: list[str] | None = None) -> int:
    """Write the file that the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bytes", type=int, default=1_000_000, help="least size of the corpus (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives another corpus (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    args = parser.parse_args(argv)
    if args.bytes < 1:
        parser.error(f"--bytes {args.bytes}: must be at least 1")
    try:
        args.out.write_bytes(corpus(args.bytes, args.seed))
    except OSError as error:
        print(f"error: cannot write {args.out}: {error.strerror}; give --out another path", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
