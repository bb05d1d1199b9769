#!/bin/bash
# SPDX-License-Identifier: MIT
# A checkpoint of `shoal train` knows its configuration: --resume needs no other option, on the same ranks and on others, and
# options that cannot hold are refused together.
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=()
model=(--data "$text" --layers 1 --width 16 --heads 2 --context 16)

# begin NAME ARGUMENTS...: a run that has saved steps 2 and 4 in $scratch/NAME and $scratch/NAME.at2.
begin() {
    local name=$1
    shift
    trains 0 "${model[@]}" --steps 4 --every 2 --checkpoint "$scratch/$name" "$@"
    cp -r "$scratch/$name" "$scratch/$name.at2"
    rm -r "$scratch/$name.at2/step-000000004"
}

# again NAME ARGUMENTS...: goes on with a copy of it, after step 2.
again() {
    rm -rf "$scratch/copy"
    cp -r "$scratch/$1.at2" "$scratch/copy"
    shift
    trains 0 --checkpoint "$scratch/copy" --resume "$@"
    grep -qx "goes on after step 2 of $scratch/copy" "$scratch/out" || complain "resume $*: does not go on after step 2"
    find_digest
}

prints() {
    grep -qxF -- "$1" "$scratch/out" || complain "does not print: $1"
}

silent() {
    [[ ! -s $scratch/err ]] || complain "says something about options that nobody gave"
}

# No other option: all that defines the run is there, also what is not the default.
begin ranks --ranks 3 --batch 2 --accumulate 2 --lr 0.01 --warmup 1 --clip 0.5 --dropout 0.1 --seed 7 --mode zero2 --compile
find_digest
wanted=$digest
again ranks
[[ $digest == "$wanted" ]] || complain "digest $digest, wanted $wanted"
silent
grep -q '^zero2, compiled, on 3 ranks: .*1 layers, width 16, 2 heads' "$scratch/out" || complain "another run"
grep -q 'a step: 3 x 2 x 2 rows of 16 tokens' "$scratch/out" || complain "another step"
# It saves as often as before.
[[ -e $scratch/copy/step-000000004 ]] || complain "saves nothing"

# Other ranks: the rows of a step stay.
again ranks --ranks 2
prints 'on 2 ranks instead of 3: --mode zero2 --batch 3 --accumulate 2, 12 rows in a step as before'
silent
again ranks -n 6
prints 'on 6 ranks instead of 3: --mode zero2 --batch 1 --accumulate 2, 12 rows in a step as before'
again ranks -n 4 --accumulate 3
prints 'on 4 ranks instead of 3: --mode zero2 --batch 1 --accumulate 3, 12 rows in a step as before'
again ranks -n 2 --batch 1
prints 'on 2 ranks instead of 3: --mode zero2 --batch 1 --accumulate 6, 12 rows in a step as before'
again ranks -n 1
prints 'on 1 rank instead of 3: --mode single --batch 2 --accumulate 6, 12 rows in a step as before'
at2=(--checkpoint "$scratch/ranks.at2" --resume)
refuses 1 "^shoal train: --resume: the run in $scratch/ranks.at2 cannot go on with 5 ranks, as a step has 12 rows: use --ranks 1 or 2 or 3 or 6\$" \
    "${at2[@]}" -n 5
refuses 1 'cannot go on with --accumulate 2, as a step has 12 rows, 1 on each rank: use --batch 1 --accumulate 1$' "${at2[@]}" -n 12
refuses 1 'cannot go on with --batch 3, as a step has 12 rows, 4 on each rank: use --batch 4 --accumulate 1 or --batch 2 --accumulate 2 or --batch 1 --accumulate 4$' \
    "${at2[@]}" --batch 3
refuses 1 'cannot go on with --batch 4 --accumulate 2, as a step has 12 rows, 4 on each rank: use' "${at2[@]}" --batch 4 --accumulate 2

# One process takes the parts of all ranks in their order: the bits stay, in both directions, and with replicas.
begin whole --ranks 4 --batch 1
find_digest
wanted=$digest
again whole -n 1
[[ $digest == "$wanted" ]] || complain "one process: digest $digest, wanted $wanted"
begin single --mode single --accumulate 4 --batch 1
find_digest
[[ $digest == "$wanted" ]] || complain "single: digest $digest, wanted $wanted"
again single -n 4
prints 'on 4 ranks instead of 1: --mode fsdp --batch 1 --accumulate 1, 4 rows in a step as before'
[[ $digest == "$wanted" ]] || complain "four ranks: digest $digest, wanted $wanted"
begin replicas --ranks 4 --batch 1 --mode hsdp
find_digest
wanted=$digest
again replicas -n 1
prints 'on 1 rank instead of 4: --mode single --batch 1 --accumulate 2x2, 4 rows in a step as before'
[[ $digest == "$wanted" ]] || complain "replicas in one process: digest $digest, wanted $wanted"
at2=(--checkpoint "$scratch/replicas.at2" --resume)
refuses 1 'cannot go on with 1 rank, as hsdp has 2 replicas: use --ranks 2 or 4$' "${at2[@]}" -n 1 --mode hsdp
refuses 1 'cannot go on with 3 ranks, as hsdp has 2 replicas: use --ranks 1 or 2 or 4$' "${at2[@]}" -n 3
refuses 1 'cannot go on with 4 ranks, as hsdp has 3 replicas: use --replicas 2 or 4$' "${at2[@]}" --replicas 3
trains 0 "${at2[@]}" --replicas 4
refuses 2 '--replicas is about --mode hsdp' --checkpoint "$scratch/whole.at2" --resume --replicas 2
begin six --ranks 6 --batch 1 --mode hsdp
refuses 1 'cannot go on with 3 ranks, as hsdp has 2 replicas: use --ranks 1 or 2 or 6, --replicas 3, or --mode fsdp$' \
    --checkpoint "$scratch/six.at2" --resume -n 3

# Everything that cannot hold, in one line; each alone, too.
at2=(--checkpoint "$scratch/whole.at2" --resume)
refuses 1 "^shoal train: --resume: the run in $scratch/whole.at2 cannot go on with --layers 1 -> 2, --width 16 -> 32, --heads 2 -> 4, --context 16 -> 17 .the model has 16 positions., --steps 4 -> 1 .2 are done., --seed 1 -> 2, --batch 3, as a step has 4 rows" \
    "${at2[@]}" --layers 2 --width 32 --heads 4 --context 17 --steps 1 --seed 2 --batch 3
[[ ! -s $scratch/out ]] || complain "prints more than why not"
refuses 1 'cannot go on with --layers 1 -> 2$' "${at2[@]}" --layers 2
refuses 1 'cannot go on with --width 16 -> 32$' "${at2[@]}" --width 32
refuses 1 'cannot go on with --heads 2 -> 4$' "${at2[@]}" --heads 4
refuses 1 'cannot go on with --seed 1 -> 2$' "${at2[@]}" --seed 2
refuses 1 'cannot go on with --steps 4 -> 1 .2 are done.$' "${at2[@]}" --steps 1
refuses 1 'cannot go on with --vocabulary 0 -> 512$' "${at2[@]}" --vocabulary 512
refuses 2 '--mode single is one process' "${at2[@]}" --mode single -n 2
# Ranks of a launcher say it once.
status=0
timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 4 "$SHOAL_TEST_TOOL" train "${at2[@]}" --width 32 >"$scratch/out" 2>"$scratch/err" || status=$?
[[ $status -eq 1 && $(grep -c 'cannot go on with --width 16 -> 32$' "$scratch/err") -eq 1 && ! -s $scratch/out ]] ||
    complain "under a launcher: exit status $status, or not one line"

# What may be another one is told; what was given, but is the same, is not.
again whole --lr 0.1 --steps 5 --layers 1 --seed 1 --dropout 0 --clip 1
[[ $(<"$scratch/err") == "shoal train: the run in $scratch/copy goes on with --steps 4 -> 5, --lr 0.001 -> 0.1" ]] ||
    complain "says something else than what is another one"
# From then on that is what the run has.
rm -r "$scratch/copy/step-000000005"
trains 0 --checkpoint "$scratch/copy" --resume
silent
grep -q '^step 5/5 ' "$scratch/out" || complain "forgets --steps 5"

# If the rate was to rise in more steps than there are now, it rises as in a run of so many; what was given is refused.
begin warm --batch 1 --warmup 3
again warm --steps 3
[[ $(<"$scratch/err") == "shoal train: the run in $scratch/copy goes on with --steps 4 -> 3, --warmup 3 -> 0" ]] || complain "another warm-up"
refuses 2 '--warmup must be less than --steps' --checkpoint "$scratch/warm.at2" --resume --steps 3 --warmup 3

# How often a run validates follows from its steps unless somebody has said it: also after --resume with other steps.
begin val --batch 1 --val 0.2
again val --steps 60
grep -q '^validation: .*, every 3 steps$' "$scratch/out" || complain "validates as often as before"
begin val_given --batch 1 --val 0.2 --val-every 2
again val_given --steps 60
grep -q '^validation: .*, every 2 steps$' "$scratch/out" || complain "forgets --val-every"

# Rows may be shorter than the model's positions.
again whole --context 8
grep -q 'a step: 4 x 1 rows of 8 tokens' "$scratch/out" || complain "another length of rows"

# The data is found again, and looked at; without it the run says where it was.
cp "$text" "$scratch/text"
(
    cd "$scratch"
    trains 0 "${model[@]}" --data text --batch 1 --steps 2 --checkpoint data
    ! $failed
) || failed=true
trains 0 --checkpoint "$scratch/data" --resume --steps 3
grep -q "^data: $scratch/text, " "$scratch/out" || complain "does not find the data"
[[ $(wc -l <"$scratch/err") -eq 1 ]] || complain "says more than --steps"
size=$(stat -c %s "$text")
echo more >>"$scratch/text"
trains 0 --checkpoint "$scratch/data" --resume --steps 4
grep -qF "shoal train: the run in $scratch/data learns from a file that has changed: $scratch/text had $size bytes, now $((size + 5))" "$scratch/err" ||
    complain "does not name the changed data"
cp "$text" "$scratch/moved"
trains 0 --checkpoint "$scratch/data" --resume --steps 5 --data "$scratch/moved"
grep -qF "learnt from $scratch/text ($((size + 5)) bytes) so far, now from $scratch/moved ($size bytes)" "$scratch/err" ||
    complain "does not name the other data"
mv "$scratch/moved" "$scratch/again"
refuses 1 "^shoal train: the data of the run in $scratch/data .--data FILE names another place.: $scratch/moved: No such file" \
    --checkpoint "$scratch/data" --resume --steps 6
trains 0 --checkpoint "$scratch/data" --resume --steps 6 --data "$scratch/again"
[[ $(<"$scratch/err") == "shoal train: the run in $scratch/data goes on with --steps 5 -> 6" ]] || complain "the same data elsewhere is another one"

# A path that JSON cannot hold is not kept: nothing else is trained on in its place.
odd=$scratch/$'te\xffxt'
cp "$text" "$odd"
trains 0 "${model[@]}" --data "$odd" --batch 1 --steps 2 --checkpoint "$scratch/odd"
refuses 1 '--resume: the path of the data is not UTF-8, and was not kept: name it with --data' --checkpoint "$scratch/odd" --resume --steps 3
trains 0 --checkpoint "$scratch/odd" --resume --steps 3 --data "$odd"
trains 0 "${model[@]}" --val "$odd" --batch 1 --steps 2 --checkpoint "$scratch/odder"
refuses 1 '--resume: the path of --val is not UTF-8, and was not kept: name it with --val' --checkpoint "$scratch/odder" --resume --steps 3
trains 0 --checkpoint "$scratch/odder" --resume --steps 3 --val "$odd"

# Tokens: the vocabulary is the model's, not that of the largest token of other data.
perl -e 'print pack "S*", map { $_ % 200 } 0 .. 999' >"$scratch/tokens"
perl -e 'print pack "S*", map { $_ % 20 } 0 .. 999' >"$scratch/few"
perl -e 'print pack "S*", map { $_ } 0 .. 999' >"$scratch/many"
trains 0 --tokens "$scratch/tokens" --layers 1 --width 16 --heads 2 --context 16 --batch 1 --steps 2 --checkpoint "$scratch/u16"
trains 0 --checkpoint "$scratch/u16" --resume --steps 3 --tokens "$scratch/few"
refuses 1 'many has token 999, but --vocabulary is 256' --checkpoint "$scratch/u16" --resume --steps 4 --tokens "$scratch/many"

# Weights of another tool: the shape stays theirs.
write_weights "$scratch/weights" transformer. 1 none
trains 0 --data "$text" --load "$scratch/weights" --heads 4 --context 16 --batch 1 --steps 2 --checkpoint "$scratch/loaded"
trains 0 --checkpoint "$scratch/loaded" --resume --steps 3
grep -q '1 layers, width 16, 4 heads' "$scratch/out" || complain "another shape than that of the weights"
refuses 1 'cannot go on with --heads 4 -> 2$' --checkpoint "$scratch/loaded" --resume --heads 2

# What has no configuration, and what is damaged. If the newest index is, the older one says which run it is.
cp -r "$scratch/whole" "$scratch/damaged"
printf x >"$scratch/damaged/step-000000004/shoal.index.json"
refuses 1 '^shoal train: --resume: .*step-000000004.*; remove step-000000004 to go on from step 2$' --checkpoint "$scratch/damaged" --resume
printf x >"$scratch/damaged/step-000000002/shoal.index.json"
refuses 1 '^shoal train: --resume: .*step-000000004/shoal.index.json: ' --checkpoint "$scratch/damaged" --resume
mkdir "$scratch/foreign"
cp "$scratch/weights/model.safetensors" "$scratch/foreign"
refuses 1 '--checkpoint: .*/foreign is a model of Hugging Face, with model.safetensors' --checkpoint "$scratch/foreign" --resume
trains 0 "${model[@]}" --batch 1 --steps 2 --checkpoint "$scratch/fresh" --resume
grep -q 'no checkpoint in .*fresh yet: begins with step 1' "$scratch/err" || complain "does not begin"

! $failed
