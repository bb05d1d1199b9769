# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: MIT
# What the tests of `shoal train` share. They read it first:
#
#   . "${BASH_SOURCE[0]%/*}/train_common.sh"
#
# and set `tiny`, the arguments of all calls. A test ends with ! $failed.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
text=$SHOAL_TEST_SOURCE_DIR/LICENSE
# The thread sanitizer itself needs files, and cannot live with a limit of 4 KiB.
may_limit_files=true
if ldd "$SHOAL_TEST_TOOL" | grep libtsan >/dev/null; then
    may_limit_files=false
fi

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    sed 's/^/  err: /' "$scratch/err"
    failed=true
}

# trains STATUS ARGUMENTS...: leaves what it prints in $scratch/out and $scratch/err.
trains() {
    local wanted=$1 status=0
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq $wanted ]] || complain "train $*: exit status $status, wanted $wanted"
}

# refuses STATUS TEXT ARGUMENTS...: one line with the text, a regular expression, and no other one about an error.
refuses() {
    local status=$1 text=$2
    shift 2
    trains "$status" "$@"
    [[ $(wc -l <"$scratch/err") -eq 1 ]] || complain "train $*: not one line"
    grep -qE -- "$text" "$scratch/err" || complain "train $*: does not say: $text"
}

# Of the run before, with --json or without; leaves it in $digest.
find_digest() {
    digest=$(sed -nE 's/.*digest(": "| of parameters +)([0-9a-f]{16}).*/\2/p' "$scratch/out")
    [[ -n $digest ]] || complain "no digest"
}

# same_as ARGUMENTS...: the run ends with the digest $wanted.
same_as() {
    trains 0 --json "$@"
    find_digest
    [[ $digest == "$wanted" ]] || complain "train $*: digest $digest, wanted $wanted"
}

# wants ARGUMENTS...: its digest is the one that runs must have from here on.
wants() {
    trains 0 --json "$@"
    find_digest
    wanted=$digest
}

# await COMMAND...: until it succeeds.
await() {
    local end=$((SECONDS + limit_s))
    until "$@"; do
        [[ $SECONDS -lt $end ]] || { complain "in vain: $*" && return 1; }
        read -rt 0.02 <> <(:) || true
    done
}

# The processes that a process started.
children_of() {
    cat "/proc/$1/task/$1/children" 2>/dev/null || true
}

# rank_of JOB RANK: the process of a rank that JOB has started.
rank_of() {
    local pid
    for pid in $(children_of "$1"); do
        if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -x "SHOAL_RANK=$2" >/dev/null; then
            echo "$pid"
        fi
    done
}

# write_weights FOLDER PREFIX N_FILES HEAD: a GPT-2 of one block, width 16 and 32 positions. With several files the tensors go
# to them in turn, and an index says where they are. HEAD: none, or an output head that is the embedding (same) or not (other).
write_weights() {
    rm -rf "$1"
    mkdir "$1"
    perl - "$@" <<'PERL'
use strict;
use warnings;
my ($folder, $prefix, $n_files, $head) = @ARGV;
my $w = 16;
my @shapes = (['wte.weight', 256, $w], ['wpe.weight', 32, $w], ['h.0.attn.c_attn.weight', $w, 3 * $w], ['h.0.attn.c_attn.bias', 3 * $w],
    ['h.0.attn.c_proj.weight', $w, $w], ['h.0.attn.c_proj.bias', $w], ['h.0.mlp.c_fc.weight', $w, 4 * $w],
    ['h.0.mlp.c_fc.bias', 4 * $w], ['h.0.mlp.c_proj.weight', 4 * $w, $w], ['h.0.mlp.c_proj.bias', $w],
    map { ["$_.weight", $w], ["$_.bias", $w] } 'h.0.ln_1', 'h.0.ln_2', 'ln_f');
my ($seed, @tensors) = (1);
for (@shapes) {
    my ($name, @shape) = @$_;
    my ($data, $count) = ('', 1);
    $count *= $_ for @shape;
    for (1 .. $count) {
        $seed = ($seed * 1103515245 + 12345) & 0x7fffffff;
        $data .= pack 'f<', $seed / 0x7fffffff * 0.2 - 0.1;
    }
    push @tensors, ["$prefix$name", \@shape, $data];
}
if ($head ne 'none') {
    my $data = $tensors[0][2];
    substr($data, -1) = "\0" if $head eq 'other';
    push @tensors, ['lm_head.weight', $tensors[0][1], $data];
}
my (@files, %map);
for my $i (0 .. $#tensors) {
    push @{$files[$i % $n_files]}, $tensors[$i];
}
for my $i (0 .. $#files) {
    my $name = $n_files == 1 ? 'model.safetensors' : sprintf 'model-%05d-of-%05d.safetensors', $i + 1, $n_files;
    my ($data, @rows) = ('');
    for (@{$files[$i]}) {
        my $begin = length $data;
        $data .= $_->[2];
        $map{$_->[0]} = $name;
        push @rows, sprintf '"%s":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}', $_->[0], join(',', @{$_->[1]}), $begin, length $data;
    }
    my $header = '{' . join(',', @rows) . '}';
    $header .= ' ' x (-length($header) % 8);
    open my $file, '>:raw', "$folder/$name" or die "$name: $!";
    print $file pack('Q<', length $header), $header, $data;
}
if ($n_files > 1) {
    open my $index, '>', "$folder/model.safetensors.index.json" or die $!;
    print $index '{"metadata": {"total_size": 0}, "weight_map": {', join(', ', map { "\"$_\": \"$map{$_}\"" } sort keys %map), "}}\n";
}
PERL
}
