#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the tokens of `shoal tokens` with those of Hugging Face's tokenizers.

    scripts/check_tokenizer.py build/bin/shoal                 learns a tokenizer from this project's own pages
    scripts/check_tokenizer.py build/bin/shoal DIR             takes vocab.json and merges.txt in DIR, GPT-2's for example
    scripts/check_tokenizer.py build/bin/shoal DIR FILE...     compares these texts, too

Needs the Python package tokenizers; `make test` does not run it. The texts are characters at random: of ASCII, of many
scripts, of all of Unicode that this Python knows, with the endings of English words, spaces and new lines between them; and
the pages in docs/. The exit status is 0 if all tokens are equal.
"""
import glob
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import ByteLevelBPETokenizer
from tokenizers import __version__ as tokenizers_version

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENDINGS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "''", "'", " '"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u0085", "\u2028"]
# Scripts, numbers of several kinds, signs, marks, emoji.
RANGES = [(0x21, 0x7E), (0xA1, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x5D0, 0x5EA), (0x600, 0x6FF), (0x900, 0x97F),
          (0xE00, 0xE7F), (0x2010, 0x206F), (0x2070, 0x2189), (0x2460, 0x24FF), (0x3041, 0x30FF), (0x4E00, 0x4FFF),
          (0xAC00, 0xAD00), (0xFF10, 0xFF5A), (0x1D400, 0x1D7FF), (0x1F300, 0x1F6FF), (0x300, 0x36F)]


def random_text(seed, n_parts, is_wild):
    """Words, numbers, signs and spaces. is_wild: any character, otherwise those of RANGES and mostly ASCII."""
    draw = random.Random(seed)
    parts = []
    for _ in range(n_parts):
        kind = draw.random()
        if kind < 0.25:
            parts.append(draw.choice(SPACES))
        elif kind < 0.35:
            parts.append(draw.choice(ENDINGS))
        else:
            first, last = RANGES[0] if draw.random() < 0.5 else draw.choice(RANGES)
            if is_wild:
                first, last = 0, 0x10FFFF
            codes = (draw.randint(first, last) for _ in range(draw.randint(1, 6)))
            parts.append("".join(chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF))
    return "".join(parts)


def is_known(text):
    """Whether all characters have long been part of Unicode: classes of new ones depend on the version."""
    return all(unicodedata.ucd_3_2_0.category(character) != "Cn" for character in text)


def learn(directory):
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(glob.glob(os.path.join(ROOT, "docs", "*.md")), vocab_size=3000, show_progress=False,
                    special_tokens=["<|endoftext|>"])
    tokenizer.save_model(directory)


def ours(tool, directory, text, scratch):
    path = os.path.join(scratch, "text")
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    done = subprocess.run([tool, "tokens", path, "--tokenizer", directory], capture_output=True, check=True, text=True)
    return [int(word) for word in done.stdout.strip().split(",") if word]


def find_difference(text, wanted, found):
    at = next((i for i, (a, b) in enumerate(zip(wanted, found)) if a != b), min(len(wanted), len(found)))
    return f"token {at} of {len(wanted)}: theirs {wanted[at:at + 5]}, ours {found[at:at + 5]}"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    tool, failed = sys.argv[1], False
    texts = [(f"scripts {seed}", random_text(seed, 20000, False)) for seed in range(8)]
    texts += [(f"all of Unicode {seed}", random_text(seed, 20000, True)) for seed in range(8)]
    texts += [("endings", " ".join(a + b + c for a in ENDINGS for b in ENDINGS + ["x", "9"] for c in SPACES + ["x"]))]
    texts += [("nothing", ""), ("spaces", " " * 999), ("one long word", "ab" * 50000)]
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))) + sys.argv[3:]:
        with open(path, encoding="utf-8", newline="") as file:
            texts.append((path, file.read()))
    print(f"tokenizers {tokenizers_version}")
    with tempfile.TemporaryDirectory() as scratch:
        directory = sys.argv[2] if len(sys.argv) > 2 else scratch
        if len(sys.argv) <= 2:
            learn(directory)
        theirs = ByteLevelBPETokenizer.from_file(os.path.join(directory, "vocab.json"), os.path.join(directory, "merges.txt"))
        for name, text in texts:
            text = "".join(character for character in text if is_known(character))
            wanted = theirs.encode(text).ids
            found = ours(tool, directory, text, scratch)
            same = wanted == found
            failed = failed or not same
            print(f"{'same' if same else 'DIFFERENT'}  {len(found):8} tokens  {name}"
                  + ("" if same else ": " + find_difference(text, wanted, found)))
    print("different tokens" if failed else "all tokens are the same")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
