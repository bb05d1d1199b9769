#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal tokens`: the tokens of GPT-2's rules, by hand and against a second implementation; files of tokens of each format;
# every text comes back; files that are wrong are refused by name.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
pairs=$SHOAL_TEST_SOURCE_DIR/tests/fixtures/byte_pairs.pl

complain() {
    echo "$1"
    failed=true
}

# converts STATUS ARGUMENTS...: leaves what it prints in $scratch/out and $scratch/err.
converts() {
    local wanted=$1 status=0
    shift
    timeout 60 "$SHOAL_TEST_TOOL" tokens "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq $wanted ]] || complain "tokens $*: exit status $status, wanted $wanted: $(cat "$scratch/err")"
}

# refuses STATUS TEXT ARGUMENTS...: a line with the text, a regular expression, and nothing on standard output.
refuses() {
    local status=$1 text=$2
    shift 2
    converts "$status" "$@"
    grep -qE -- "^shoal tokens: $text" "$scratch/err" || complain "tokens $*: does not say '$text': $(cat "$scratch/err")"
    [[ ! -s $scratch/out ]] || complain "tokens $*: prints something"
}

# gives TOKENS TEXT: what `shoal tokens` with $tokenizer makes of the text, in which \n and \xff stand for bytes.
gives() {
    printf '%b' "$2" >"$scratch/text"
    converts 0 "$scratch/text" --tokenizer "$tokenizer"
    [[ $(<"$scratch/out") == "$1" ]] || complain "'$2' gives $(<"$scratch/out"), not $1"
}

# By hand: h e l o space and some words of theirs. "Ġ" is a space, "Ċ" a new line.
tokenizer=$scratch/hand
mkdir "$tokenizer"
cat >"$tokenizer/vocab.json" <<'JSON'
{"h": 0, "e": 1, "l": 2, "o": 3, "Ġ": 4, "Ċ": 5, "'": 6, "s": 7, "!": 8, "he": 9, "ll": 10, "hell": 11, "Ġhe": 12,
 "hello": 13, "Ã": 14, "©": 15, "Ã©": 16, "1": 17, "<|endoftext|>": 18, "ÿ": 19, "'s": 20}
JSON
printf '#version: 0.2\nh e\nl l\nhe ll\nĠ he\nhell o\nÃ ©\n'"' s"'\n' >"$tokenizer/merges.txt"
gives 13 hello
gives 4,13 ' hello'               # "hell" comes before " he", which is then not there any more
gives 12,2,3 ' helo'              # but here it is
gives 13,20 "hello's"             # an ending is a piece of its own
gives 6,6,7 "''s"                 # but not behind another sign
gives 4,12,2,3 '  helo'           # of two spaces one belongs to the word
gives 13,4,4 'hello  '            # at the end all belong together
gives 5,5,13 '\n\nhello'          # a new line is no space of a word
gives 13,5,4,13 'hello\n hello'
gives 17,17,13,8,8 '11hello!!'    # numbers, letters and signs are apart
gives 16,13 '\xc3\xa9hello'       # é is a letter: one piece with what follows, but no merge with it
gives 14,13 '\xc3hello'           # half of it is no character
gives 19,14,16 '\xff\xc3\xc3\xa9' # nor is 0xff, for which "ÿ" stands
gives '' ''
refuses 1 'the tokenizer has no token for the byte 0x61' - --tokenizer "$tokenizer" < <(printf a)

# A special token is text like any other, and is decoded.
cp -r "$tokenizer" "$scratch/special"
printf '\x12\0\x0d\0\x12\0' >"$scratch/words"
converts 0 --decode "$scratch/words" --tokenizer "$scratch/special"
[[ $(<"$scratch/out") == '<|endoftext|>hello<|endoftext|>' ]] || complain "special tokens are not decoded"
refuses 1 'the tokenizer has no token for the byte 0x3c' - --tokenizer "$tokenizer" < <(printf '<|endoftext|>')

# Learned merges, against the second implementation: texts of many scripts, and this project's.
tokenizer=$scratch/learned
mkdir "$tokenizer"
{
    "$pairs" text 1 800
    head -c 6000 "$SHOAL_TEST_SOURCE_DIR/README.md"
} >"$scratch/learn"
"$pairs" train 150 "$tokenizer" <"$scratch/learn"
"$pairs" bin 1 "$tokenizer"
mv "$tokenizer/tokenizer.bin" "$scratch/tokenizer1.bin"
"$pairs" bin 2 "$tokenizer"
"$pairs" text 2 6000 >"$scratch/text2"
head -c 30000 "$SHOAL_TEST_SOURCE_DIR/docs/architecture.md" >"$scratch/text3"
for text in "$scratch/text2" "$scratch/text3"; do
    "$pairs" encode "$tokenizer" <"$text" >"$scratch/wanted"
    for path in "$tokenizer" "$tokenizer/tokenizer.bin"; do
        converts 0 "$text" --tokenizer "$path"
        cmp -s "$scratch/wanted" "$scratch/out" || complain "$path gives other tokens"
    done
done

# One long piece, and blocks: a text of more than a MiB is cut nowhere else than a short one.
head -c 300000 /dev/zero | tr '\0' a >"$scratch/long"
converts 0 "$scratch/long" --tokenizer "$tokenizer" -o "$scratch/long.bin"
converts 0 --decode "$scratch/long.bin" --tokenizer "$tokenizer" -o "$scratch/back"
cmp -s "$scratch/long" "$scratch/back" || complain "a long piece does not come back"
# A block ends after 1 MiB: within "'t", spaces, é, "'re", a wide space. Behind a new line a letter begins anew.
printf "x  don't  \n\n\xc3\xa9're12 \xe2\x80\x83\xe2\x80\x83y" >"$scratch/end"
converts 0 "$scratch/end" --tokenizer "$tokenizer"
cp "$scratch/out" "$scratch/tail"
for n_behind in 7 10 13 16 21; do
    head -c $((1048575 - n_behind)) /dev/zero | tr '\0' z >"$scratch/begin"
    echo >>"$scratch/begin"
    converts 0 "$scratch/begin" --tokenizer "$tokenizer"
    paste -d, "$scratch/out" "$scratch/tail" >"$scratch/wanted"
    cat "$scratch/begin" "$scratch/end" >"$scratch/large"
    converts 0 "$scratch/large" --tokenizer "$tokenizer"
    cmp -s "$scratch/wanted" "$scratch/out" || complain "a block that ends behind $n_behind bytes shows in the tokens"
done

# Every byte, and bytes at random: they come back, by each tokenizer, as u16 and, with a large vocabulary, as u32.
perl -e 'binmode STDOUT; print map { chr } 0 .. 255; srand 5; print map { chr int rand 256 } 1 .. 20000' >"$scratch/bytes"
perl -pe 's/"<\|endoftext\|>": \d+/"<|endoftext|>": 70000/' "$tokenizer/vocab.json" >"$scratch/special/vocab.json"
cp "$tokenizer/merges.txt" "$scratch/special"
for path in "$tokenizer" "$tokenizer/tokenizer.bin" "$scratch/tokenizer1.bin" "$scratch/special"; do
    converts 0 "$scratch/bytes" --tokenizer "$path" -o "$scratch/bytes.bin"
    grep -q " tokens of $([[ $path == */special ]] && echo 4 || echo 2) bytes in " "$scratch/out" || complain "$path: $(cat "$scratch/out")"
    converts 0 --decode "$scratch/bytes.bin" --tokenizer "$path"
    cmp -s "$scratch/bytes" "$scratch/out" || complain "$path: bytes do not come back"
done

# Both kinds of files of llm.c, as it writes them, and plain u16.
perl -e 'print pack("L<256", 20240520, 1, 3, (0) x 253), pack("S<3", 0, 1, 2)' >"$scratch/gpt2"
perl -e 'print pack("L<256", 20240801, 7, 3, (0) x 253), pack("L<3", 0, 1, 2)' >"$scratch/llama"
perl -e 'print pack("S<3", 0, 1, 2)' >"$scratch/plain"
for file in gpt2 llama plain; do
    converts 0 --decode "$scratch/$file" --tokenizer "$scratch/hand"
    [[ $(<"$scratch/out") == hel ]] || complain "$file is read as $(<"$scratch/out")"
done
converts 0 - --tokenizer "$scratch/hand" -o "$scratch/made" < <(printf hello)
perl -e 'print pack("L<256", 20240520, 1, 1, (0) x 253), pack("S<", 13)' | cmp -s - "$scratch/made" || complain "another file than llm.c writes"

# Files of tokens that are wrong.
for file in gpt2 llama; do
    head -c -1 "$scratch/$file" >"$scratch/cut"
    refuses 1 ".*/cut has 10[0-9]* bytes; its header says 3 tokens of [24] bytes" --decode "$scratch/cut" --tokenizer "$tokenizer"
done
perl -e 'print pack("L<256", 20240520, 9, 0, (0) x 253)' >"$scratch/wrong"
refuses 1 '.*/wrong is a file of llm.c \(20240520\) of version 9; version 1 is read' --decode "$scratch/wrong" --tokenizer "$tokenizer"
refuses 1 '.*/tokenizer.bin is a tokenizer of llm.c, not a file of tokens' --decode "$tokenizer/tokenizer.bin" --tokenizer "$tokenizer"
printf 'abc' >"$scratch/odd"
refuses 1 '.*/odd has 3 bytes, which is not a whole number of u16 tokens' --decode "$scratch/odd" --tokenizer "$tokenizer"
printf '\xff\xff' >"$scratch/unknown"
refuses 1 '.*/unknown has token 65535, which the tokenizer does not have' --decode "$scratch/unknown" --tokenizer "$tokenizer"
refuses 1 '.*/nowhere: No such file' "$scratch/nowhere" --tokenizer "$tokenizer"
refuses 1 '.* is a directory' "$scratch" --tokenizer "$tokenizer"
converts 1 "$scratch/text2" --tokenizer "$tokenizer" -o "$scratch/no/where"
refuses 2 'needs --tokenizer PATH' "$scratch/text2"
refuses 2 'needs a file of text' --tokenizer "$tokenizer"

# Tokenizers that are wrong. with FILE TEXT: the learned one, with that file instead.
with() {
    rm -rf "$scratch/broken"
    cp -r "$scratch/hand" "$scratch/broken"
    printf '%b' "$2" >"$scratch/broken/$1"
}
refuses_it() { refuses 1 "$1" "$scratch/text3" --tokenizer "$scratch/broken"; }
with merges.txt '#version: 0.2\nh e\nl\n'
refuses_it ".*/merges.txt:3: 'l' is not two words"
with merges.txt 'h e l\n'
refuses_it ".*/merges.txt:1: 'h e l' is not two words"
with merges.txt 'h e\nh x\n'
refuses_it ".*/merges.txt:2: 'x' is not a token of vocab.json"
with merges.txt 'e e\n'
refuses_it '.*/merges.txt:1: both words together are not a token of vocab.json'
with merges.txt 'h e\nl l\nh e\n'
refuses_it ".*/merges.txt:3: 'h e' is there twice"
rm "$scratch/broken/merges.txt"
refuses_it '.*/merges.txt: No such file'
with vocab.json '{"a": 0'
refuses_it '.*/vocab.json:1: '
with vocab.json '[]'
refuses_it '.*/vocab.json: is not an object of tokens'
with vocab.json '{"a": 0, "b": 0}'
refuses_it '.*/vocab.json: token 0 is there twice'
with vocab.json '{"a": "b"}'
refuses_it '.*/vocab.json: "a" has no whole number'
with vocab.json '{"a": 123456789}'
refuses_it '.*/vocab.json: token 123456789 is not from 0 to'
with vocab.json '{"a": 1, "a": 2}'
refuses_it '.*/vocab.json:1: duplicate object key'
refuses 1 ".* has no tokenizer: no vocab.json and merges.txt" "$scratch/text3" --tokenizer "$scratch"
refuses 1 '.*/nowhere: No such file' "$scratch/text3" --tokenizer "$scratch/nowhere"
refuses 1 '.*/odd: has 3 bytes, fewer than the header' "$scratch/text3" --tokenizer "$scratch/odd"
refuses 1 '.*/gpt2: has .*|.*/gpt2: is not a tokenizer of llm.c: it begins with 20240520' "$scratch/text3" --tokenizer "$scratch/gpt2"
head -c -2 "$tokenizer/tokenizer.bin" >"$scratch/cut"
refuses 1 '.*/cut: ends within token 406 of 407' "$scratch/text3" --tokenizer "$scratch/cut"
{ cat "$tokenizer/tokenizer.bin"; printf x; } >"$scratch/more"
refuses 1 '.*/more: has 1 bytes behind the last of its 407 tokens' "$scratch/text3" --tokenizer "$scratch/more"

! $failed
