#!/bin/bash
# SPDX-License-Identifier: MIT
# Whole checkpoints can be read by any reader of safetensors: one of ten lines finds every byte that four ranks have
# saved of a module and its optimizer. scripts/check_export.py has PyTorch read the same files.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# read_tensor NAME FILE...: its bytes, from the file that has it.
read_tensor() {
    perl -e 'my $name = shift;
        for my $path (@ARGV) {
            open my $file, "<:raw", $path or die "$path: $!";
            read $file, my $length, 8;
            read $file, my $header, unpack("Q<", $length);
            next if $header !~ /"\Q$name\E":\{[^}]*"data_offsets":\[(\d+),(\d+)\]/;
            seek $file, 8 + unpack("Q<", $length) + $1, 0;
            read $file, my $bytes, $2 - $1;
            print $bytes;
        }' "$@"
}

# holds DIRECTORY CHECKPOINT: it has all values of the list in the directory, once each.
holds() {
    while read -r section name _; do
        [[ $section == loss ]] || read_tensor "$name" "$2/$section"*.safetensors
    done <"$1/values.txt" | cmp - "$1/values.bin"
}

for dtype in f32 bf16; do
    to=$scratch/$dtype
    "$SHOAL_TEST_TOOL" run --no-label -n 4 "$SHOAL_TEST_BUILD_DIR/tests/interop/export_model" "$to" "$dtype"
    [[ $(wc -l <"$to/values.txt") -eq 46 ]]
    for kind in file files; do
        holds "$to" "$to/$kind/step-000000003"
    done
    # Tied: once, under the first name, and the alias in the metadata.
    grep -q '"head.weight":"embedding.weight"' <(tr -d ' ' <"$to/file/step-000000003/model.safetensors")
    # The index of several files says which has what.
    (cd "$to/files/step-000000003" && perl -MJSON::PP -0777 -e 'my $index = decode_json(<STDIN>);
        my %map = %{$index->{weight_map}};
        my %files = map { $_ => 1 } values %map;
        keys(%map) == 15 && keys(%files) > 1 && $index->{metadata}{total_size} > 0 or die "another index\n";
        for my $name (keys %map) { system("grep", "-qaF", "\"$name\":", $map{$name}) == 0 or die "$name\n"; }' \
        <model.safetensors.index.json)
    # Pieces are nothing that another reader would take for whole tensors.
    [[ -z $(read_tensor embedding.weight "$to"/pieces/step-000000003/*.safetensors) ]]
done
