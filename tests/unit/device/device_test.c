/* SPDX-License-Identifier: MIT */
/* The table of devices: rows that are complete, names, and memory. */
#include "device/device.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "harness/test.h"

TEST(rows_are_complete)
{
    for (int i = 0; i < DEVICE_COUNT; i++) {
        const struct device_row *row = device_rows[i];
        shoal_device found;
        CHECK_OK(device_check((shoal_device)i, "device"));
        CHECK_OK(device_find(row->name, &found));
        CHECK((int)found == i);
        CHECK(row->doc[0] != '\0');
        CHECK(!row->is_host || row->has_data);
    }
    shoal_device device;
    CHECK_STATUS(device_check((shoal_device)DEVICE_COUNT, "device"), SHOAL_ERR_INVALID);
    CHECK_STATUS(device_check((shoal_device)-1, "device"), SHOAL_ERR_INVALID);
    CHECK_STATUS(device_find("gpu", &device), SHOAL_ERR_INVALID);
}

TEST(memory_of_every_device)
{
    static const size_t sizes[] = {0, 1, MEM_DATA_ALIGNMENT - 1, MEM_DATA_ALIGNMENT, 100000};
    const size_t header_bytes = 56;
    for (int i = 0; i < DEVICE_COUNT; i++) {
        for (size_t k = 0; device_has_data((shoal_device)i) && k < sizeof sizes / sizeof sizes[0]; k++) {
            void *data = NULL;
            void *allocated = NULL;
            REQUIRE_OK(device_allocate((shoal_device)i, header_bytes, sizes[k], &allocated, &data));
            char *header = allocated;
            CHECK((uintptr_t)header % 16 == 0);
            CHECK((uintptr_t)data % (sizes[k] < MEM_DATA_ALIGNMENT ? 16 : MEM_DATA_ALIGNMENT) == 0);
            memset(header, 1, header_bytes);
            memset(data, 2, sizes[k]);
            CHECK(header[header_bytes - 1] == 1);
            device_release((shoal_device)i, header, data);
        }
    }
}

TEST(more_memory_than_there_is)
{
    void *data = NULL;
    void *header = NULL;
    CHECK_STATUS(device_allocate(SHOAL_CPU, 64, SIZE_MAX - 8, &header, &data), SHOAL_ERR_NO_MEMORY);
    CHECK_ERROR_TEXT("more than can be addressed");
    test_fail_allocation(1, false);
    CHECK_STATUS(device_allocate(SHOAL_CPU, 64, 1000, &header, &data), SHOAL_ERR_NO_MEMORY);
    test_fail_allocation(0, false);
    CHECK(!data);
}
