#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train`: one digest for all modes, what it prints, and --verify.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
tiny=(--data "$SHOAL_TEST_SOURCE_DIR/LICENSE" --layers 2 --width 16 --heads 2 --context 16 --batch 1 --dropout 0.1)

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    sed 's/^/  err: /' "$scratch/err"
    failed=true
}

# trains ARGUMENTS...: leaves what it prints in $scratch/out and $scratch/err.
trains() {
    timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" "$@" >"$scratch/out" 2>"$scratch/err" || complain "train $*: failed"
}

# says LINE: a regular expression.
says() {
    grep -qxE -- "$1" "$scratch/out" || complain "no line: $1"
}

# digest ARGUMENTS...
digest() {
    trains --steps 4 --json "$@"
    digest=$(sed -nE 's/.*"digest": "([0-9a-f]{16})"\}$/\1/p' "$scratch/out")
    [[ -n $digest ]] || complain "train $*: no digest"
}

# same_as ARGUMENTS...: the digest is the wanted one.
same_as() {
    digest "$@"
    [[ $digest == "$wanted" ]] || complain "train $*: digest $digest, wanted $wanted"
}

# Ranks and one process, whatever is sharded, compiled or not; also where shards are uneven.
digest --mode single --accumulate 4
wanted=$digest
same_as --mode single --accumulate 4 --compile
for mode in ddp zero1 zero2 fsdp; do
    same_as --mode "$mode" --ranks 4
done
same_as --mode ddp --ranks 4 --compile
same_as --mode fsdp --ranks 4 --compile
digest --mode single --accumulate 2x2
wanted=$digest
same_as --mode hsdp --ranks 4 --replicas 2
digest --mode single --accumulate 3
wanted=$digest
same_as --ranks 3
same_as --mode ddp --ranks 3 --compile
[[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "--json prints more than a line"
trains --steps 4 --lr 1e6 --clip 0 --json
grep -q '"loss_last": null,' "$scratch/out" || complain "a loss that is no number is not null"
for key in mode ranks params steps loss_first loss_last step_ms_median compute_ms_median exposed_comm_ms_median tokens_per_s \
    peak_rss_mb unsharded_bytes_host digest; do
    grep -q "\"$key\": " "$scratch/out" || complain "no $key"
done

# Under a launcher it joins.
timeout "$limit_s" "$SHOAL_TEST_TOOL" run -n 3 --no-label "$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 4 --json >"$scratch/out" \
    2>"$scratch/err" || complain "under shoal run: failed"
grep -q "\"digest\": \"$wanted\"" "$scratch/out" || complain "under shoal run: another digest"

# Lines for people; several backward passes in a step, and bf16, can be verified as well.
number='[0-9]+(\.[0-9]+)?'
trains --steps 2 --ranks 2 --accumulate 2 --verify --verify-steps 1 --prompt 'The ' --sample 8
says 'fsdp on 2 ranks: a GPT of 0.01 million parameters \(2 layers, width 16, 2 heads\)'
says "step 2/2  loss $number  $number tokens/s  0:00 left  comm $number% hidden  $number MB/rank"
says 'what it writes:'
says 'The .*'
says "  step \(median\) +$number ms: compute $number ms, exposed communication $number ms"
says 'The first 1 of these 2 steps on 2 ranks \(fsdp\) and in one process gave the same bits\.'
! grep -q $'\033' "$scratch/out" || complain "escape sequences in a pipe"
trains --steps 2 --ranks 2 --mode zero1 --dtype bf16 --verify --live 80
says '2 ranks \(zero1\) and one process, 2 steps each, ended in the same bits\.'
says $'\033''\[1A'$'\033''\[2K\[={4,}\] 2/2 loss .* MB/rank'

# Every live line has the loss of the step that it names: the one that a plain line has.
trains --steps 20 --ranks 2
sed -nE 's!^step ([0-9]+/20)  loss ([0-9.]+) .*!\1 loss \2!p' "$scratch/out" >"$scratch/plain"
trains --steps 20 --ranks 2 --live 80
sed -nE 's!.*\] ([0-9]+/20 loss [0-9.]+) .*!\1!p' "$scratch/out" >"$scratch/live"
[[ $(wc -l <"$scratch/plain") -eq 20 && $(tail -n 1 "$scratch/live") == "$(tail -n 1 "$scratch/plain")" ]] ||
    complain "the last loss is not said"
! grep -vxFf "$scratch/plain" "$scratch/live" || complain "a loss of another step"

# Weights of another tool, under the names of Hugging Face with and without the prefix; they tell the shape of the model.
# write_weights FILE PREFIX
write_weights() {
    perl - "$@" <<'END'
use strict;
use warnings;
my ($path, $prefix) = @ARGV;
my $w = 16;
my @shapes = (['wte.weight', 256, $w], ['wpe.weight', 32, $w], ['h.0.attn.c_attn.weight', $w, 3 * $w], ['h.0.attn.c_attn.bias', 3 * $w],
    ['h.0.attn.c_proj.weight', $w, $w], ['h.0.attn.c_proj.bias', $w], ['h.0.mlp.c_fc.weight', $w, 4 * $w],
    ['h.0.mlp.c_fc.bias', 4 * $w], ['h.0.mlp.c_proj.weight', 4 * $w, $w], ['h.0.mlp.c_proj.bias', $w],
    map { ["$_.weight", $w], ["$_.bias", $w] } 'h.0.ln_1', 'h.0.ln_2', 'ln_f');
my ($data, $seed, @rows) = ('', 1);
for (@shapes) {
    my ($name, @shape) = @$_;
    my ($begin, $count) = (length $data, 1);
    $count *= $_ for @shape;
    for (1 .. $count) {
        $seed = ($seed * 1103515245 + 12345) & 0x7fffffff;
        $data .= pack 'f<', $seed / 0x7fffffff * 0.2 - 0.1;
    }
    push @rows, sprintf '"%s%s":{"dtype":"F32","shape":[%s],"data_offsets":[%d,%d]}', $prefix, $name, join(',', @shape), $begin, length $data;
}
my $header = '{' . join(',', @rows) . '}';
$header .= ' ' x (-length($header) % 8);
open my $file, '>:raw', $path or die "$path: $!";
print $file pack('Q<', length $header), $header, $data;
END
}
mkdir "$scratch/written" "$scratch/hub"
write_weights "$scratch/written/model.safetensors" transformer.
write_weights "$scratch/hub/model.safetensors" ''
digest --load "$scratch/written" --mode single --accumulate 2
wanted=$digest
[[ $(sed -nE 's/.*"params": ([0-9]+).*/\1/p' "$scratch/out") -eq 7920 ]] || complain "not the model that was loaded"
same_as --load "$scratch/hub" --ranks 2

# Baseline: ranks that do not talk.
trains --steps 2 --ranks 2 --mode none --trace "$scratch/t.json"
says " +trace +$scratch/t.json \(shoal trace $scratch/t.json\)"
says 'none on 2 ranks: .*'

! $failed
