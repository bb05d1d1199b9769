#!/bin/bash
# SPDX-License-Identifier: MIT
# replay_collectives: PyTorch's results are ours; files made here are judged right for any number of ranks, and every
# way to be wrong is counted and explained.
# shellcheck source-path=SCRIPTDIR source=replay_common.sh
. "${BASH_SOURCE[0]%/*}/replay_common.sh" replay_collectives

# write NAME: a file from lines on standard input
write() {
    perl "$fixtures/write_safetensors.pl" >"$scratch/$1"
}

expect 0 '372 checked, 0 wrong, worst 0.' "$golden/collectives.safetensors"
expect 0 '134 checked, 0 wrong, worst 0.' "$golden/more_coll.safetensors"
says '23 were refused by PyTorch and have nothing to compare'
says '1 gradients that PyTorch hands on unchanged were compared with the adjoint'

# Looking for leaks takes seconds per run on some machines: once is enough.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# Any number of ranks, every dtype of the format.
for ranks in 1 2 5 7; do
    for dtype in F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8; do
        perl "$fixtures/make_collectives.pl" $ranks $dtype
    done >"$scratch/lines"
    for dtype in C64 BOOL; do
        perl "$fixtures/make_collectives.pl" $ranks $dtype
    done >>"$scratch/lines"
    write "ranks_$ranks" <"$scratch/lines"
    expect 0 '168 checked, 0 wrong, worst 0 of its bound' "$scratch/ranks_$ranks"
done
expect 0 '336 checked, 0 wrong' "$scratch/ranks_1" "$scratch/ranks_5"

# The same, with one value changed: the last of the last rank.
perl "$fixtures/make_collectives.pl" 5 I32 |
    perl -pe 's/\d+$/99/ if /^w5\.all_gather_tensor\.dim2\.i32\.rank4\.out0 /' | write changed
expect 1 '13 checked, 1 wrong, worst inf of its bound' "$scratch/changed"
says 'w5.all_gather_tensor.dim2.i32: rank4.out0, element 59: got the bits 0x00000000, expected 0x00000063, inf of its bound'

# Bounds: a sum of two f32 may be one last place away, a product of two twice that.
write bounds <<'END'
w2.all_reduce.sum.f32.rank0.in0 F32 [2] 1,1
w2.all_reduce.sum.f32.rank0.out0 F32 [2] 2,2.000000238418579
w2.all_reduce.sum.f32.rank1.in0 F32 [2] 1,1
w2.all_reduce.sum.f32.rank1.out0 F32 [2] 2,2
w2.all_reduce.product.f32.rank0.in0 F32 [1] 1
w2.all_reduce.product.f32.rank0.out0 F32 [1] 1.000000119209290
w2.all_reduce.product.f32.rank1.in0 F32 [1] 1
w2.all_reduce.product.f32.rank1.out0 F32 [1] 1
END
expect 0 '2 checked, 0 wrong, worst 1 of its bound' "$scratch/bounds"
write bounds <<'END'
w2.all_reduce.sum.f32.rank0.in0 F32 [2] 1,1
w2.all_reduce.sum.f32.rank0.out0 F32 [2] 2,2
w2.all_reduce.sum.f32.rank1.in0 F32 [2] 1,1
w2.all_reduce.sum.f32.rank1.out0 F32 [2] 2,2.000000476837158
w2.all_reduce.product.f32.rank0.in0 F32 [1] 1
w2.all_reduce.product.f32.rank0.out0 F32 [1] 1.000000476837158
w2.all_reduce.product.f32.rank1.in0 F32 [1] 1
w2.all_reduce.product.f32.rank1.out0 F32 [1] 1
w2.all_reduce.max.f32.rank0.in0 F32 [1] 1
w2.all_reduce.max.f32.rank0.out0 F32 [1] 1.000000119209290
w2.all_reduce.max.f32.rank1.in0 F32 [1] 1
w2.all_reduce.max.f32.rank1.out0 F32 [1] 1
END
expect 1 '3 checked, 3 wrong, worst inf of its bound' "$scratch/bounds"
says 'w2.all_reduce.sum.f32: rank1.out0, element 1: got 2, expected 2.0000004768371582, 2 of its bound'
says 'w2.all_reduce.max.f32: rank0.out0, element 0: got the bits 0x3f800000, expected 0x3f800001, inf of its bound'

# A block of a reduce_scatter is held against its own inputs: the large ones belong to the other rank.
write blocks <<'END'
w2.reduce_scatter_tensor.sum.dim1.f32.rank0.in0 F32 [2,2] 1,1000,1,1000
w2.reduce_scatter_tensor.sum.dim1.f32.rank0.out0 F32 [2,1] 2,2.00001
w2.reduce_scatter_tensor.sum.dim1.f32.rank1.in0 F32 [2,2] 1,1000,1,1000
w2.reduce_scatter_tensor.sum.dim1.f32.rank1.out0 F32 [2,1] 2000.0001,2000.0001
w2.reduce_scatter_tensor.sum.dim-1.f32.rank0.in0 F32 [2,2] 1,1000,1,1000
w2.reduce_scatter_tensor.sum.dim-1.f32.rank0.out0 F32 [2,1] 2,2
w2.reduce_scatter_tensor.sum.dim-1.f32.rank1.in0 F32 [2,2] 1,1000,1,1000
w2.reduce_scatter_tensor.sum.dim-1.f32.rank1.out0 F32 [2,1] 2000.0001,2000.0001
END
expect 1 '2 checked, 1 wrong, worst 42 of its bound' "$scratch/blocks"

# What is no number, complex sums, a sum of one.
write odd <<'END'
w2.all_reduce.sum.f64.rank0.in0 F64 [3] nan,inf,inf
w2.all_reduce.sum.f64.rank0.out0 F64 [3] nan,inf,nan
w2.all_reduce.sum.f64.rank1.in0 F64 [3] 1,1,-inf
w2.all_reduce.sum.f64.rank1.out0 F64 [3] nan,inf,nan
w2.all_reduce.sum.c64.rank0.in0 C64 [1] 1,2
w2.all_reduce.sum.c64.rank0.out0 C64 [1] 4,6
w2.all_reduce.sum.c64.rank1.in0 C64 [1] 3,4
w2.all_reduce.sum.c64.rank1.out0 C64 [1] 4,6
w2.all_reduce.max.i64.rank0.in0 I64 [0,3]
w2.all_reduce.max.i64.rank0.out0 I64 [0,3]
w2.all_reduce.max.i64.rank1.in0 I64 [0,3]
w2.all_reduce.max.i64.rank1.out0 I64 [0,3]
w1.all_reduce.sum.f32.rank0.in0 F32 [] 1
w1.all_reduce.sum.f32.rank0.out0 F32 [] 1
END
expect 0 '4 checked, 0 wrong, worst 0 of its bound' "$scratch/odd"
write odd <<'END'
w2.all_reduce.sum.f64.rank0.in0 F64 [1] 1
w2.all_reduce.sum.f64.rank0.out0 F64 [1] nan
w2.all_reduce.sum.f64.rank1.in0 F64 [1] 1
w2.all_reduce.sum.f64.rank1.out0 F64 [1] inf
END
expect 1 '1 checked, 1 wrong, worst inf of its bound' "$scratch/odd"

# Names that mean nothing, and tensors that do not make a case: each is wrong, and the rest is judged all the same.
# good CASE: the lines of an all_reduce of i32 over two ranks under another name
good() {
    printf '%s.rank%d.%s I32 [1] %d\n' "$1" 0 in0 1 "$1" 0 out0 3 "$1" 1 in0 2 "$1" 1 out0 3
}
{
    good w2.all_reduce.sum.i32
    good w2.all_shuffle.i32
    good w2.all_reduce.premul_sum.i32
    good w2.all_reduce.SUM.i32
    good w2.all_reduce.i32
    good w2.all_reduce.sum.dim0.i32
    good w2.all_reduce.sum.dim0.more.i32
    good w2.all_reduce.sum.i33
    good w2.all_reduce.sum.i64
    good w2.all_gather_tensor.dim.i32
    good w2.all_gather_tensor.dim0x.i32
    good w2.broadcast.src2.i32
    good w2.broadcast.src-1.i32
    good w0.all_reduce.max.i32
    good w.all_reduce.max.i32
    good all_reduce.max.i32
    good w1.all_reduce.max.i32
    good w3.all_reduce.max.i32
    good w99999.all_reduce.max.i32
    good w2.all_reduce.bor.i32 | sed 1d
    good w2.all_reduce.band.i32 | sed 2d
    good w2.all_reduce.bxor.i32 | sed 's/in0/in1/'
    good w2.all_reduce.min.i32 | sed 's/rank1/rank01/'
    good w2.all_reduce.product.i32 && echo 'w2.all_reduce.product.i32.rank0.in1 I32 [1] 1'
    good w2.all_reduce_coalesced.sum.i32 && echo 'w2.all_reduce_coalesced.sum.i32.rank0.in1 I32 [1] 1'
    echo 'w2.all_reduce.sum.u8.rank0.out I32 [1] 1'
    echo 'something I32 [1] 1'
    good w2.zzz | sed 's/rank/RANK/' | sed 1q
} | write names
expect 1 '30 checked, 29 wrong, worst 0 of its bound' "$scratch/names"
says "w2.all_shuffle.i32: unknown name: there is no op 'all_shuffle'"
says "w2.all_reduce.premul_sum.i32: unknown name: all_reduce does not know 'premul_sum'"
says "w2.all_reduce.sum.i33: unknown name: 'i33' is not a dtype"
says 'w2.all_reduce.sum.i64: rank0.in0 is i32, the name says i64'
says 'w2.all_reduce.i32: unknown name: all_reduce has 1 words of variant, not 0'
says "w2.broadcast.src2.i32: unknown name: broadcast does not know 'src2'"
says 'all_reduce.max.i32: unknown name: not of the form wN.[grad.]OP[.VARIANT].DTYPE'
says 'w1.all_reduce.max.i32: rank1.in0 should not be there'
says 'w3.all_reduce.max.i32: rank2.in0 is missing, or another is there that should not be'
says 'w2.all_reduce.band.i32: rank 0 has 0 outputs, not 1'
says 'w2.all_reduce.bor.i32: rank 0 has no inputs'
says 'w2.all_reduce.product.i32: rank 0 has 2 inputs, not 1'
says 'something: unknown name: does not end in .rankR.inI, .outI, .goutI or .ginI'

# Calls that fail, or would leave their group failed, do not spoil those behind them.
{
    good w2.all_reduce.band.i32 | sed 's/3$/0/'
    good w2.all_gather_tensor.dim7.i32
    printf 'w2.all_reduce.bor.i32.rank%d.%s I32 [%s] %s\n' 0 in0 1 1 0 out0 1 3 1 in0 2 2,2 1 out0 2 3,3
    good w2.all_to_all_single.even.i32
    good w2.all_to_all_single.uneven.i32
    good w2.all_reduce.sum.i32 | sed '/out/s/\[1\]/[1,1]/'
    good w2.reduce_scatter_tensor_coalesced.sum.i32
    good w2.reduce_scatter_tensor.max.dim3.i32
    good w2.all_reduce.max.i32 | sed 's/3$/2/'
} | write calls
expect 1 '9 checked, 7 wrong, worst 0 of its bound' "$scratch/calls"
says 'w2.all_reduce.bor.i32: rank1.in0 is [2], which does not fit rank0.in0 of [1]'
says 'w2.all_reduce.sum.i32: rank0.out0: got i32 [1], expected i32 [1, 1]'
says 'w2.all_to_all_single.uneven.i32: rank0.in0 is [1], which does not fit rank0.in0 of [1] and the rows of an uneven split'
if ! grep -q '^w2\.all_gather_tensor\.dim7\.i32: rank [01]: .*gather_dim' "$scratch/out"; then
    complain "the failed call is not explained:"
fi

# Averages: half of a last place of the sum and one of the result; complex numbers as pairs; layouts; rows that are none.
write more <<'END'
w2.all_reduce.avg.f32.rank0.in0 F32 [1] 1
w2.all_reduce.avg.f32.rank0.out0 F32 [1] 1.000000238418579
w2.all_reduce.avg.f32.rank1.in0 F32 [1] 1
w2.all_reduce.avg.f32.rank1.out0 F32 [1] 1
w2.all_reduce.sum.c64.rank0.in0 F32 [1,2] 1,2
w2.all_reduce.sum.c64.rank0.out0 F32 [1,2] 4,6
w2.all_reduce.sum.c64.rank1.in0 F32 [1,2] 3,4
w2.all_reduce.sum.c64.rank1.out0 F32 [1,2] 4,6
w2.all_reduce.sum.transposed.i32.rank0.in0 I32 [2,3] 1,2,3,4,5,6
w2.all_reduce.sum.transposed.i32.rank0.out0 I32 [2,3] 2,4,6,8,10,12
w2.all_reduce.sum.transposed.i32.rank1.in0 I32 [2,3] 1,2,3,4,5,6
w2.all_reduce.sum.transposed.i32.rank1.out0 I32 [2,3] 2,4,6,8,10,12
w2.all_to_all_single.zeros.i32.rank0.in0 I32 [2] 1,2
w2.all_to_all_single.zeros.i32.rank0.out0 I32 [1] 3
w2.all_to_all_single.zeros.i32.rank1.in0 I32 [1] 3
w2.all_to_all_single.zeros.i32.rank1.out0 I32 [2] 1,2
w2.permute_tensor.shift1.rows.i32.rank0.in0 I32 [1,2] 1,2
w2.permute_tensor.shift1.rows.i32.rank0.out0 I32 [1,2] 3,4
w2.permute_tensor.shift1.rows.i32.rank1.in0 I32 [1,2] 3,4
w2.permute_tensor.shift1.rows.i32.rank1.out0 I32 [1,2] 1,2
w2.c10d_all_reduce.premul_sum.f32.rank0.in0 F32 [1] 1
w2.c10d_all_reduce.premul_sum.f32.rank0.out0 F32 [1] 2
w2.c10d_all_reduce.premul_sum.f32.rank1.in0 F32 [1] 3
w2.c10d_all_reduce.premul_sum.f32.rank1.out0 F32 [1] 2
__metadata__ torch 2.11
__metadata__ errors {"w2.all_reduce.max.c64": "not supported", "w2.grad.chain.f32": "no"}
END
expect 0 '6 checked, 0 wrong, worst 1 of its bound' "$scratch/more"
says '2 were refused by PyTorch and have nothing to compare'

# Gradients: of gathers a block of the sum, of exchanges moved, of reductions for each rank's tensor.
gradients() {
    cat <<'END'
w2.grad.all_gather_tensor.dim0.f32.rank0.in0 F32 [1] 1
w2.grad.all_gather_tensor.dim0.f32.rank0.out0 F32 [2] 1,2
w2.grad.all_gather_tensor.dim0.f32.rank0.gout0 F32 [2] 10,20
w2.grad.all_gather_tensor.dim0.f32.rank0.gin0 F32 [1] 40
w2.grad.all_gather_tensor.dim0.f32.rank1.in0 F32 [1] 2
w2.grad.all_gather_tensor.dim0.f32.rank1.out0 F32 [2] 1,2
w2.grad.all_gather_tensor.dim0.f32.rank1.gout0 F32 [2] 30,40
w2.grad.all_gather_tensor.dim0.f32.rank1.gin0 F32 [1] 60
w2.grad.nn_all_gather.f32.rank0.in0 F32 [1] 1
w2.grad.nn_all_gather.f32.rank0.out0 F32 [1] 1
w2.grad.nn_all_gather.f32.rank0.out1 F32 [1] 2
w2.grad.nn_all_gather.f32.rank0.gout0 F32 [1] 10
w2.grad.nn_all_gather.f32.rank0.gout1 F32 [1] 20
w2.grad.nn_all_gather.f32.rank0.gin0 F32 [1] 40
w2.grad.nn_all_gather.f32.rank1.in0 F32 [1] 2
w2.grad.nn_all_gather.f32.rank1.out0 F32 [1] 1
w2.grad.nn_all_gather.f32.rank1.out1 F32 [1] 2
w2.grad.nn_all_gather.f32.rank1.gout0 F32 [1] 30
w2.grad.nn_all_gather.f32.rank1.gout1 F32 [1] 40
w2.grad.nn_all_gather.f32.rank1.gin0 F32 [1] 60
w2.grad.reduce_scatter_tensor.avg.dim0.f32.rank0.in0 F32 [2] 1,2
w2.grad.reduce_scatter_tensor.avg.dim0.f32.rank0.out0 F32 [1] 2
w2.grad.reduce_scatter_tensor.avg.dim0.f32.rank0.gout0 F32 [1] 10
w2.grad.reduce_scatter_tensor.avg.dim0.f32.rank0.gin0 F32 [2] 5,10
w2.grad.reduce_scatter_tensor.avg.dim0.f32.rank1.in0 F32 [2] 3,4
w2.grad.reduce_scatter_tensor.avg.dim0.f32.rank1.out0 F32 [1] 3
w2.grad.reduce_scatter_tensor.avg.dim0.f32.rank1.gout0 F32 [1] 20
w2.grad.reduce_scatter_tensor.avg.dim0.f32.rank1.gin0 F32 [2] 5,10
w2.grad.broadcast.src0.f32.rank0.in0 F32 [1] 1
w2.grad.broadcast.src0.f32.rank0.out0 F32 [1] 1
w2.grad.broadcast.src0.f32.rank0.gout0 F32 [1] 10
w2.grad.broadcast.src0.f32.rank0.gin0 F32 [1] 30
w2.grad.broadcast.src0.f32.rank1.in0 F32 [1] 2
w2.grad.broadcast.src0.f32.rank1.out0 F32 [1] 1
w2.grad.broadcast.src0.f32.rank1.gout0 F32 [1] 20
w2.grad.broadcast.src0.f32.rank1.gin0 F32 [1] 0
END
}
gradients | write gradients
expect 0 '4 checked, 0 wrong, worst 0 of its bound' "$scratch/gradients"
gradients | perl -pe 's/\d+$/5/ if /rank1\.gin0/' | write gradients
expect 1 '4 checked, 4 wrong' "$scratch/gradients"
says 'w2.grad.all_gather_tensor.dim0.f32: rank1.gin0, element 0: got 60, expected 5, 7.69e+06 of its bound'
says 'w2.grad.broadcast.src0.f32: rank1.gin0, element 0: got the bits 0x00000000, expected 0x40a00000, inf of its bound'

# What a name says and its tensors do not have; gradients in part; refusals that are none.
{
    good w2.all_reduce.sum.empty.i32
    good w2.all_reduce.sum.zero_d.i32
    good w2.all_reduce.sum.transposed.i32
    good w2.all_reduce.sum.empty.empty.i32
    good w2.permute_tensor.shift2.i32
    good w2.shard_dim_alltoall.gather0.i32
    good w2.all_gather_inplace.i32
    good w2.reduce_scatter_tensor_coalesced.sum.dims012.i32
    good w2.grad.all_reduce_.sum.i32
    good w2.grad.all_reduce.sum.i32 && echo 'w2.grad.all_reduce.sum.i32.rank0.gin0 I32 [1] 1'
    good w2.all_reduce.max.i32 && echo 'w2.all_reduce.max.i32.rank0.gout0 I32 [1] 1'
    good w2.all_reduce.sum.c64
    echo '__metadata__ errors {"w2.all_reduce.max.i32": "no", "w2.all_mix.i32": "no", "w2.broadcast.src0.i32": 3}'
    echo '__metadata__ Torch 2.11'
} | write names
expect 1 '16 checked, 16 wrong' "$scratch/names"
says 'w2.all_reduce.sum.empty.i32: rank0.in0 is [1], which is not empty'
says 'w2.all_reduce.sum.zero_d.i32: rank0.in0 is [1], which is not without dimensions'
says 'w2.all_reduce.sum.transposed.i32: rank0.in0 is [1], which is not of two dimensions'
says "w2.permute_tensor.shift2.i32: unknown name: permute_tensor does not know 'shift2'"
says 'w2.shard_dim_alltoall.gather0.i32: unknown name: shard_dim_alltoall has 2 words of variant, not 1'
says 'w2.all_gather_inplace.i32: rank 0 has 1 outputs, not 2'
says 'w2.reduce_scatter_tensor_coalesced.sum.dims012.i32: rank 0 has 1 inputs, and the name has 3 dimensions'
says 'w2.grad.all_reduce_.sum.i32: unknown name: all_reduce_ has no gradient that could be compared'
says 'w2.grad.all_reduce.sum.i32: rank 0 has 1 gradients of inputs and 0 of outputs'
says 'w2.all_reduce.sum.c64: rank0.in0 is i32, the name says c64'
says 'w2.all_reduce.max.i32: errors: it was refused, and has tensors'
says "w2.all_mix.i32: unknown name: there is no op 'all_mix'"
says 'w2.broadcast.src0.i32: errors: the message is not a string'
says 'Torch: unknown key of the metadata'
echo '__metadata__ errors [1]' | write errors
expect 1 '1 checked, 1 wrong' "$scratch/errors"
says 'errors: is no JSON object'

# No file, no reader.
expect 2 ''
says 'usage: replay_collectives FILE.safetensors...'
expect 2 '' --help
expect 2 '' "$scratch/none"
says "replay_collectives: safetensors_open: $scratch/none: No such file or directory"
printf 'nothing' >"$scratch/short"
expect 2 '' "$scratch/ranks_1" "$scratch/short"
: | write empty
expect 0 '0 checked, 0 wrong, worst 0 of its bound' "$scratch/empty"

! $failed
