/* SPDX-License-Identifier: MIT */
/* Slabs: their objects end in any order, before and after the maker, and leave no block. */
#include "tensor/slab.h"

#include <pthread.h>
#include <string.h>

#include "harness/test.h"
#include "tensor/tensor.h"

enum {
    N_TENSORS = 2000 /* in several blocks */
};

static const int64_t shape[] = {3, 4};

static void make_all(struct slab *slab, shoal_tensor **tensors)
{
    for (size_t i = 0; i < N_TENSORS; i++) {
        REQUIRE_OK(tensor_create_shape(slab, SHOAL_F32, 2, shape, &tensors[i]));
        CHECK(tensors[i]->storage->device == SHOAL_META);
        CHECK_INT(tensors[i]->count, 12);
    }
}

/* Each number once, in another order. */
static size_t shuffle(size_t i)
{
    return i * 1237 % N_TENSORS;
}

TEST(objects_end_before_and_after_their_maker)
{
    static shoal_tensor *tensors[N_TENSORS];
    size_t blocks = test_live_blocks();
    struct slab slab = {.block = NULL};
    make_all(&slab, tensors);
    for (size_t i = 0; i < N_TENSORS / 2; i++) {
        shoal_tensor_unref(tensors[shuffle(i)]);
    }
    slab_end(&slab);
    for (size_t i = N_TENSORS / 2; i < N_TENSORS; i++) {
        CHECK_INT(tensors[shuffle(i)]->layout.strides[0], 4);
        shoal_tensor_unref(tensors[shuffle(i)]);
    }
    CHECK_INT(test_live_blocks(), blocks);
    slab_end(&slab); /* an empty one */
}

TEST(a_view_keeps_the_storage)
{
    struct slab slab = {.block = NULL};
    struct layout layout = {.n_dims = 1, .offset = 6, .shape = {6}, .strides = {1}};
    shoal_tensor *tensor;
    shoal_tensor *view;
    size_t blocks = test_live_blocks();
    REQUIRE_OK(tensor_create_shape(&slab, SHOAL_F32, 2, shape, &tensor));
    REQUIRE_OK(tensor_create_shape_view(&slab, tensor, &layout, 6, &view));
    layout.offset = 7; /* behind the end */
    CHECK_STATUS(tensor_create_shape_view(&slab, tensor, &layout, 6, &tensor), SHOAL_ERR_INVALID);
    slab_end(&slab);
    shoal_tensor_unref(tensor);
    CHECK(view->is_view);
    CHECK_INT(view->storage->bytes, 48);
    shoal_tensor_unref(view);
    CHECK_INT(test_live_blocks(), blocks);
}

static void *end_half(void *context)
{
    shoal_tensor **tensors = context;
    for (size_t i = 0; i < N_TENSORS; i += 2) {
        shoal_tensor_unref(tensors[i]);
    }
    return NULL;
}

TEST(objects_end_on_another_thread_meanwhile)
{
    static shoal_tensor *tensors[N_TENSORS];
    size_t blocks = test_live_blocks();
    struct slab slab = {.block = NULL};
    pthread_t thread;
    make_all(&slab, tensors);
    REQUIRE(pthread_create(&thread, NULL, end_half, tensors) == 0);
    for (size_t i = 1; i < N_TENSORS; i += 2) {
        shoal_tensor_unref(tensors[i]);
    }
    slab_end(&slab);
    (void)pthread_join(thread, NULL);
    CHECK_INT(test_live_blocks(), blocks);
}

TEST(no_memory_leaves_the_slab_as_it_was)
{
    struct slab slab = {.block = NULL};
    shoal_tensor *tensor = NULL;
    size_t blocks = test_live_blocks();
    test_fail_allocation(1, /*is_lasting=*/false);
    CHECK_STATUS(tensor_create_shape(&slab, SHOAL_F32, 2, shape, &tensor), SHOAL_ERR_NO_MEMORY);
    CHECK(!slab.block && !tensor);
    REQUIRE_OK(tensor_create_shape(&slab, SHOAL_F32, 2, shape, &tensor));
    shoal_tensor_unref(tensor);
    slab_end(&slab);
    CHECK_INT(test_live_blocks(), blocks);
}
