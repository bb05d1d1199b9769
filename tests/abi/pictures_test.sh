#!/bin/bash
# SPDX-License-Identifier: MIT
# The pictures of the docs are what their texts give, and each is shown by a page.
set -euo pipefail
cd "$SHOAL_TEST_SOURCE_DIR"

scripts/draw.pl --check docs/pictures/*.txt
for picture in docs/pictures/*.svg; do
    [[ -f ${picture%.svg}.txt ]] || { echo "$picture has no text" && exit 1; }
    grep -qF "pictures/$(basename "$picture")" README.md docs/*.md || { echo "no page shows $picture" && exit 1; }
done

# The picture of the layers has all of them.
while read -r layer; do
    grep -qE "(^box |\| )$layer( /|:)" docs/pictures/layers.txt || { echo "layers.txt has no box for $layer" && exit 1; }
done < <(sed -n 's/^layer \([a-z]*\)$/\1/p' src/layers.txt)

# A change that was not drawn is found.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp docs/pictures/step.* "$scratch"
sed -i 's/AdamW/SGD/' "$scratch/step.txt"
if scripts/draw.pl --check "$scratch/step.txt" 2>"$scratch/said"; then
    echo "a changed text was not noticed"
    exit 1
fi
grep -q 'run scripts/draw.pl' "$scratch/said"
