#!/bin/bash
# SPDX-License-Identifier: MIT
# `make install PREFIX=DIR`, then programs outside the tree: C99 and C++17 through pkg-config, shared and
# static, and through find_package(shoal). The prefix is moved after the installation: nothing may depend on
# where it was.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# ctest may itself run below make.
unset MAKEFLAGS MAKELEVEL MFLAGS
if ! make -C "$SHOAL_TEST_SOURCE_DIR" install PREFIX="$scratch/first" >install.log 2>&1; then
    cat install.log
    exit 1
fi
mv first prefix
prefix=$scratch/prefix

cat >program.c <<'EOF'
#include <shoal/shoal.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char built[32];
    float values[3] = {1, 2, 3};
    int64_t shape[1] = {3};
    snprintf(built, sizeof built, "%d.%d.%d", SHOAL_VERSION_MAJOR, SHOAL_VERSION_MINOR, SHOAL_VERSION_PATCH);
    if (strcmp(built, shoal_version()) != 0 || shoal_dtype_bytes(SHOAL_F32) != 4) {
        return 1;
    }
    if (shoal_scope_begin() != SHOAL_OK) {
        return 2;
    }
    shoal_tensor *sum = shoal_sum(shoal_from_memory(values, shape, 1, SHOAL_F32, NULL, NULL, NULL), NULL, 0, false);
    const float *result = (const float *)shoal_data(sum);
    int is_right = result && *result == 6;
    return shoal_scope_end() == SHOAL_OK && is_right ? 0 : 3;
}
EOF
cp program.c program.cc

cat >network.c <<'EOF'
#include <shoal/shoal.h>
#include <shoal_nn/nn.h>
#include <shoal_nn/optim.h>

int main(void)
{
    int64_t shape[2] = {2, 2};
    shoal_nn_sgd_options options = SHOAL_NN_SGD_OPTIONS_INIT;
    shoal_nn_optimizer *optimizer;
    if (shoal_scope_begin() != SHOAL_OK) {
        return 1;
    }
    shoal_tensor *w = shoal_full(shape, 2, 3.0, SHOAL_F32);
    if (shoal_set_requires_grad(w, true) != SHOAL_OK || shoal_nn_sgd_create(&w, 1, &options, &optimizer) != SHOAL_OK) {
        return 2;
    }
    shoal_tensor *loss = shoal_nn_mse(shoal_nn_linear(w, shoal_detach(w), NULL), shoal_zeros(shape, 2, SHOAL_F32));
    if (shoal_backward(loss, NULL) != SHOAL_OK || shoal_nn_optimizer_step(optimizer) != SHOAL_OK) {
        return 3;
    }
    shoal_nn_optimizer_free(optimizer);
    const float *after = (const float *)shoal_data(w);
    int is_right = after && after[0] > 2.9f && after[0] < 3.0f;
    return shoal_scope_end() == SHOAL_OK && is_right ? 0 : 4;
}
EOF
cp network.c network.cc

cat >names.c <<'EOF'
#include <shoal/scope.h>
#include <shoal/ops.h>
#include <shoal_compat/torch.h>
int main(void)
{
    int64_t shape[2] = {2, 3};
    if (shoal_scope_begin() != SHOAL_OK) {
        return 1;
    }
    shoal_tensor *flat = shoal_flatten(shoal_zeros(shape, 2, SHOAL_F32), 0, -1);
    int is_right = flat && shoal_tensor_n_dims(flat) == 1 && shoal_tensor_shape(flat)[0] == 6;
    return shoal_scope_end() == SHOAL_OK && is_right ? 0 : 1;
}
EOF

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs shoal)"
read -ra static_flags <<<"$(pkg-config --static --libs-only-l --libs-only-other shoal)"
strict=(-Wall -Wextra -Wpedantic -Werror)

run_shared() {
    LD_LIBRARY_PATH=$prefix/lib "$1"
}

echo "C99, pkg-config"
cc -std=c99 "${strict[@]}" program.c -o c99 "${flags[@]}"
run_shared ./c99
echo "C++17, pkg-config"
c++ -std=c++17 "${strict[@]}" program.cc -o cxx17 "${flags[@]}"
run_shared ./cxx17

echo "C99, libshoal.a"
mkdir static_only
cp "$prefix/lib/libshoal.a" static_only/
cc -std=c99 "${strict[@]}" -I"$prefix/include" program.c -o c99_static -Lstatic_only "${static_flags[@]}"
./c99_static
if ldd c99_static | grep libshoal; then
    echo "the static program needs libshoal.so"
    exit 1
fi

echo "find_package(shoal)"
version=$("$prefix/bin/shoal" --version | awk '{ print $2 }')
[[ $(pkg-config --modversion shoal) == "$version" ]]
mkdir package
cat >package/CMakeLists.txt <<EOF
cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES C)
find_package(shoal $version REQUIRED)
add_executable(user_shared ../program.c)
target_link_libraries(user_shared PRIVATE shoal::shoal)
add_executable(user_static ../program.c)
target_link_libraries(user_static PRIVATE shoal::static)
add_executable(network_shared ../network.c)
target_link_libraries(network_shared PRIVATE shoal::nn)
add_executable(network_by_library ../network.c)
target_link_libraries(network_by_library PRIVATE shoal::shoal_nn)
add_executable(names_by_library ../names.c)
target_link_libraries(names_by_library PRIVATE shoal::shoal_compat)
add_executable(network_static ../network.c)
target_link_libraries(network_static PRIVATE shoal::nn_static)
EOF
if ! { cmake -S package -B package/build -DCMAKE_PREFIX_PATH="$prefix" && cmake --build package/build; } \
    >cmake.log 2>&1; then
    cat cmake.log
    exit 1
fi
package/build/user_shared
package/build/user_static

echo "shoal_nn: C99 and C++17, pkg-config, static, find_package"
read -ra nn_flags <<<"$(pkg-config --cflags --libs shoal_nn)"
cc -std=c99 "${strict[@]}" network.c -o network_c99 "${nn_flags[@]}"
run_shared ./network_c99
c++ -std=c++17 "${strict[@]}" network.cc -o network_cxx17 "${nn_flags[@]}"
run_shared ./network_cxx17
cp "$prefix/lib/libshoal_nn.a" static_only/
read -ra nn_static_flags <<<"$(pkg-config --static --libs-only-l --libs-only-other shoal_nn)"
cc -std=c99 "${strict[@]}" -I"$prefix/include" network.c -o network_static -Lstatic_only "${nn_static_flags[@]}"
./network_static
SHOAL_NN_BLAS=none ./network_static
package/build/network_shared
package/build/network_static
package/build/network_by_library

echo "shoal_compat: pkg-config"
read -ra compat_flags <<<"$(pkg-config --cflags --libs shoal_compat)"
cc -std=c99 "${strict[@]}" names.c -o names_c99 "${compat_flags[@]}"
run_shared ./names_c99
package/build/names_by_library

echo "the tool finds transports that are installed in lib, also when it is found in PATH"
for tool in "$prefix/bin/shoal" "bin/../bin/shoal" shoal; do
    (cd "$prefix" && PATH=$prefix/bin:$PATH SHOAL_TRANSPORT=socket "$tool" bench barrier --ranks 2) >bench.log 2>&1 ||
        { cat bench.log && exit 1; }
done

for page in shoal shoal-bench shoal-info shoal-opt shoal-run; do
    [[ -s $prefix/share/man/man1/$page.1 ]]
done

for file in bash-completion/completions/shoal zsh/site-functions/_shoal fish/vendor_completions.d/shoal.fish; do
    grep train "$prefix/share/$file" >/dev/null || { echo "no completion in $file" && exit 1; }
done

cmp "$SHOAL_TEST_SOURCE_DIR/include/shoal-api.json" "$prefix/share/shoal/shoal-api.json"

echo "documents: all of them, and their links lead somewhere"
doc=$prefix/share/doc/shoal
(cd "$SHOAL_TEST_SOURCE_DIR" && ls README.md CHANGELOG.md LICENSE docs/*.md docs/design/*.md examples/*.c examples/*.graph) >documents.txt
while read -r file; do
    [[ -s $doc/$file ]] || { echo "$file is not installed" && exit 1; }
done <documents.txt
[[ ! -e $doc/docs/man ]]
n_links=0
while IFS=: read -r file link; do
    n_links=$((n_links + 1))
    [[ -e $(dirname "$file")/$link ]] || { echo "$file: the link to $link leads nowhere" && exit 1; }
done < <(grep -roE --include='*.md' '\]\([^)#:]+' "$doc" | sed 's/:](/:/')
[[ $n_links -gt 40 ]]

# A path begins after something that is no part of one: the tree may lie in /shoal.
begin='(^|[^A-Za-z0-9_./}-])'
if grep -rlF "$scratch/first" "$prefix" ||
    grep -rlE "$begin$SHOAL_TEST_SOURCE_DIR/" "$prefix/lib/pkgconfig" "$prefix/lib/cmake"; then
    echo "these files name a place that they should not know"
    exit 1
fi
