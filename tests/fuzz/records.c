/* SPDX-License-Identifier: MIT */
/* Changing inputs that consist of records. */
#include "fuzz/records.h"

/* Where a record begins; `number` is less than the count of records. */
static struct record find_record(const unsigned char *data, size_t size, uint64_t number)
{
    int program;
    struct record record = {.bytes = data};
    struct records records = records_begin(data, size, &program);
    for (uint64_t i = 0; i <= number; i++) {
        (void)records_next(&records, &record);
    }
    return record;
}

static uint64_t count_records(const unsigned char *data, size_t size)
{
    int program;
    struct record record;
    struct records records = records_begin(data, size, &program);
    uint64_t n_records = 0;
    while (records_next(&records, &record)) {
        n_records++;
    }
    return n_records;
}

size_t records_mutate(unsigned char *data, size_t size, size_t max_size, struct test_random *random,
                      size_t (*mutate)(unsigned char *data, size_t size, size_t max_size))
{
    static unsigned char changed[FUZZ_MAX_BYTES];
    static unsigned char behind[FUZZ_MAX_BYTES];
    uint64_t n_records = count_records(data, size);
    if (n_records == 0 || size > sizeof behind || max_size <= size) {
        return mutate(data, size, max_size);
    }
    struct record record = find_record(data, size, test_random_below(random, n_records));
    size_t begin = (size_t)(record.bytes - data) - RECORD_HEAD_BYTES;
    size_t end = begin + RECORD_HEAD_BYTES + record.n_bytes;
    size_t n_behind = size - end;
    size_t room = max_size - (size - record.n_bytes);
    room = room < sizeof changed ? room : sizeof changed;
    memcpy(behind, data + end, n_behind);
    memcpy(changed, record.bytes, record.n_bytes);
    size_t n_changed = mutate(changed, record.n_bytes, room);
    size_t n_written =
        records_write(data + begin, max_size - begin - n_behind, record.who, changed, n_changed);
    memcpy(data + begin + n_written, behind, n_behind);
    return begin + n_written + n_behind;
}
