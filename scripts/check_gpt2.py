#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Loads what `shoal export` has written with transformers, and compares its logits with those of `shoal generate --logits`.

    scripts/check_gpt2.py build/bin/shoal              trains small models, of bytes and of tokens, and exports them
    scripts/check_gpt2.py build/bin/shoal DIR...       takes directories that shoal export has written, or GPT-2 itself

Then the way back: what save_pretrained of transformers writes is loaded by `shoal generate`, with the same logits. Needs the
Python packages torch, transformers and safetensors; `make test` does not run it. Logits may differ by 1e-5 of the largest
one. The exit status is 0 if all are equal within that.
"""
import os
import random
import struct
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

TOLERANCE = 1e-5
N_PROMPT = 200


def run(*words):
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout


def write_tokens(path, vocabulary, seed):
    draw = random.Random(seed)
    with open(path, "wb") as file:
        tokens = [min(int(draw.expovariate(8.0 / vocabulary)), vocabulary - 1) for _ in range(60000)]
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens))


def make_models(tool, scratch):
    """Bytes with 6 heads and dropout, on two ranks; tokens of an odd vocabulary; more layers than one digit counts."""
    tokens = os.path.join(scratch, "tokens.bin")
    write_tokens(tokens, 1003, 1)
    cases = [("bytes", ["--layers", "3", "--width", "96", "--heads", "6", "--context", "64", "--dropout", "0.1",
                        "--ranks", "2", "--steps", "30"]),
             ("tokens", ["--layers", "2", "--width", "40", "--heads", "5", "--context", "48", "--steps", "30",
                         "--tokens", tokens, "--vocabulary", "1003"]),
             ("deep", ["--layers", "12", "--width", "64", "--heads", "1", "--context", "96", "--steps", "10"])]
    for name, words in cases:
        run(tool, "train", "--checkpoint", os.path.join(scratch, name), *words)
        run(tool, "export", os.path.join(scratch, name), os.path.join(scratch, name + "-gpt2"))
        yield os.path.join(scratch, name + "-gpt2")


def our_logits(tool, directory, prompt, scratch):
    path = os.path.join(scratch, "logits")
    run(tool, "generate", directory, "--prompt-tokens", ",".join(map(str, prompt)), "--length", "0", "--logits", path)
    return load_file(path)


def compare(name, wanted, found):
    difference = (wanted - found).abs().max().item()
    scale = max(1.0, wanted.abs().max().item())
    is_close = difference <= TOLERANCE * scale
    same = (wanted.argmax(-1) == found.argmax(-1)).sum().item()
    print(f"{'close' if is_close else 'DIFFERENT'}  {name}: {tuple(found.shape)} logits up to {scale:.3f}, "
          f"largest difference {difference:.2e}, {same} of {len(wanted)} likeliest tokens are the same")
    return is_close


def check(tool, directory, scratch):
    model = transformers.GPT2LMHeadModel.from_pretrained(directory).to(torch.float32).eval()
    config = model.config
    draw = random.Random(7)
    prompt = [draw.randrange(config.vocab_size) for _ in range(min(N_PROMPT, config.n_positions))]
    found = our_logits(tool, directory, prompt, scratch)
    assert found["tokens"].tolist() == prompt
    with torch.no_grad():
        wanted = model(torch.tensor([prompt])).logits[0]
    is_right = compare(directory, wanted, found["logits"])
    back = os.path.join(scratch, "back")
    model.save_pretrained(back)
    return compare(f"{directory}, saved by transformers", wanted, our_logits(tool, back, prompt, scratch)["logits"]) and is_right


def check_text(tool, directory):
    """The tokenizer that is exported with a model of bytes, and what both write when they always take the likeliest."""
    if not os.path.exists(os.path.join(directory, "vocab.json")):
        return True
    tokenizer = transformers.GPT2Tokenizer.from_pretrained(directory)
    text = "The é is two bytes."
    tokens = tokenizer(text).input_ids
    wanted = list(text.encode()) if len(tokenizer.get_vocab()) <= 257 else tokens
    model = transformers.GPT2LMHeadModel.from_pretrained(directory).eval()
    prompt = torch.tensor([tokens[:8]])
    n_new = min(20, model.config.n_positions - prompt.shape[1])
    theirs = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n_new, do_sample=False, pad_token_id=0)
    done = subprocess.run([tool, "generate", directory, "--prompt-tokens", ",".join(map(str, tokens[:8])), "--length", str(n_new),
                           "--temperature", "0"], capture_output=True, check=True)
    decoded = tokenizer.decode(theirs[0]).encode()
    is_right = tokens == wanted
    print(f"{'same' if is_right else 'DIFFERENT'}  {directory}: tokens of a text")
    is_same = done.stdout.rstrip(b"\n") == decoded.rstrip(b"\n")
    print(f"{'same' if is_same else 'another text (bytes that are not UTF-8 are printed differently)'}  {directory}: {done.stdout!r}")
    return is_right


def try_check(what, tool, directory, *more):
    """One that cannot be made counts as a failure, and the others go on."""
    try:
        return what(tool, directory, *more)
    except Exception as error:  # pylint: disable=broad-except
        output = getattr(error, "stderr", "")
        print(f"FAILED  {directory}: {type(error).__name__}: {error} {output}")
        return False


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    tool = sys.argv[1]
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as scratch:
        directories = sys.argv[2:] or make_models(tool, scratch)
        results = []
        for directory in directories:
            results.append(try_check(check, tool, directory, scratch))
            results.append(try_check(check_text, tool, directory))
    print("all are close" if all(results) else "some differ")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
