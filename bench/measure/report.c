/* SPDX-License-Identifier: MIT */
/* From the times on the page to a row. docs/benchmarks.md explains every column. */
#include "measure/measure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The processor as the system calls it, or its part number where it has no name. */
void measure_print_cpu(FILE *out)
{
    static const char *const keys[] = {"model name", "CPU part"};
    char line[256] = "";
    const char *name = "unknown\n";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof(line), file)) {
        const char *colon = strchr(line, ':');
        bool is_key =
            strncmp(line, keys[0], strlen(keys[0])) == 0 || strncmp(line, keys[1], strlen(keys[1])) == 0;
        if (colon && is_key) {
            name = colon[1] == ' ' ? colon + 2 : colon + 1;
            break;
        }
    }
    fprintf(out, "# cpu       %s%s", name, strchr(name, '\n') ? "" : "\n");
    if (file) {
        fclose(file);
    }
}

void measure_print_header(const struct measure_request *request)
{
    printf("%-14s %5s %10s %10s %-5s %-5s %4s %-9s %-16s %-9s %10s %10s %10s %8s %8s %7s", "#op", "ranks",
           "bytes", "count", "dtype", "redop", "root", "transport", "algorithm", "buffers", "median_us",
           "p99_us", "max_us", "algbw", "busbw", "wrong");
    if (request->has_in_place) {
        printf(" %12s %12s %12s %12s", "in_place_us", "in_place_alg", "in_place_bus", "in_place_bad");
    }
    printf("\n");
}

static int compare_times(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Means over the iterations, whose times are sorted. */
static void summarise_means(const struct measure_plan *plan, struct measure_page *page, const int64_t *times,
                            struct measure_summary *summary)
{
    const struct measure_request *request = plan->request;
    int n = plan->n_iterations;
    int first_rank = request->late_us > 0 && request->n_ranks > 1 ? 1 : 0;
    int n_slow = 0;
    for (int i = 0; i < n; i++) {
        summary->mean_us += (double)times[i] * 1e-3 / n;
        n_slow += times[i] > request->slow_us * 1000;
    }
    summary->slow = (double)n_slow / n;
    for (int rank = first_rank; rank < request->n_ranks; rank++) {
        summary->cpu_us +=
            (double)*measure_page_cpu_ns(page, rank) * 1e-3 / n / (request->n_ranks - first_rank);
    }
}

/* The longest of the ranks, per iteration, into rank 0's own times. */
void measure_summarise(const struct measure_plan *plan, struct measure_page *page,
                       struct measure_summary *summary)
{
    *summary = (struct measure_summary){0};
    size_t n = (size_t)plan->n_iterations;
    int64_t *longest = measure_page_times(page, 0);
    summary->wrong = *measure_page_wrong(page, 0);
    for (int rank = 1; rank < plan->request->n_ranks; rank++) {
        const int64_t *times = measure_page_times(page, rank);
        for (size_t i = 0; i < n; i++) {
            longest[i] = times[i] > longest[i] ? times[i] : longest[i];
        }
        summary->wrong += *measure_page_wrong(page, rank);
    }
    qsort(longest, n, sizeof(longest[0]), compare_times);
    summary->min_us = (double)longest[0] * 1e-3;
    size_t middle = n / 2;
    size_t last_of_99 = (n * 99 + 99) / 100 - 1;
    summary->median_us = (double)(longest[n - 1 - middle] + longest[middle]) * 0.5e-3;
    summary->p99_us = (double)longest[last_of_99] * 1e-3;
    summary->max_us = (double)longest[n - 1] * 1e-3;
    summarise_means(plan, page, longest, summary);
    summary->algbw_gbs = (double)plan->bytes / (summary->median_us * 1e3);
    summary->busbw_gbs =
        summary->algbw_gbs * measure_ops[plan->request->op].bus_scale((double)plan->request->n_ranks);
}

static void print_json(const struct measure_plan *plan, const struct measure_library *library,
                       const char *algorithm, const struct measure_summary *summary,
                       const struct measure_summary *in_place)
{
    const struct measure_request *request = plan->request;
    const struct measure_op_row *op = &measure_ops[request->op];
    char root[16];
    (void)snprintf(root, sizeof root, "%d", request->root);
    const char *quote = op->reduces ? "\"" : "";
    printf(
        "{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"dtype\": \"%s\", \"transport\": \"%s\", "
        "\"algorithm\": \"%s\", \"median_us\": %.3f, \"p99_us\": %.3f, \"max_us\": %.3f, \"wrong\": %" PRIu64
        ", ",
        op->name, request->n_ranks, plan->bytes, request->dtype->name, library->transport, algorithm,
        summary->median_us, summary->p99_us, summary->max_us, summary->wrong);
    printf("\"min_us\": %.3f, \"mean_us\": %.3f, \"slow\": %.4f, \"cpu_us\": %.3f, \"algbw_gbs\": %.3f, "
           "\"busbw_gbs\": %.3f, \"buffers\": \"%s\", \"rotate\": %zu, "
           "\"iterations\": %d, \"size\": %zu, \"count\": %zu, \"redop\": %s%s%s, \"root\": %s",
           summary->min_us, summary->mean_us, summary->slow, summary->cpu_us, summary->algbw_gbs,
           summary->busbw_gbs, library->buffers, request->rotate_bytes, plan->n_iterations,
           plan->bytes > 0 ? plan->size_bytes : 0, plan->count, quote,
           op->reduces ? measure_redops[request->redop].name : "null", quote, op->has_root ? root : "null");
    if (in_place) {
        printf(", \"in_place_us\": %.3f, \"in_place_algbw_gbs\": %.3f, \"in_place_busbw_gbs\": %.3f, "
               "\"in_place_wrong\": %" PRIu64,
               in_place->median_us, in_place->algbw_gbs, in_place->busbw_gbs, in_place->wrong);
    }
    printf("}\n");
}

static void print_text(const struct measure_plan *plan, const struct measure_library *library,
                       const char *algorithm, const struct measure_summary *summary,
                       const struct measure_summary *in_place)
{
    const struct measure_request *request = plan->request;
    const struct measure_op_row *op = &measure_ops[request->op];
    char root[16];
    (void)snprintf(root, sizeof root, "%d", request->root);
    printf("%-14s %5d %10zu %10zu %-5s %-5s %4s %-9s %-16s %-9s %10.2f %10.2f %10.2f %8.2f %8.2f %7" PRIu64,
           op->name, request->n_ranks, plan->bytes, plan->count, request->dtype->name,
           op->reduces ? measure_redops[request->redop].name : "-", op->has_root ? root : "-",
           library->transport, algorithm, library->buffers, summary->median_us, summary->p99_us,
           summary->max_us, summary->algbw_gbs, summary->busbw_gbs, summary->wrong);
    if (in_place) {
        printf(" %12.2f %12.2f %12.2f %12" PRIu64, in_place->median_us, in_place->algbw_gbs,
               in_place->busbw_gbs, in_place->wrong);
    } else if (request->has_in_place) {
        printf(" %12s %12s %12s %12s", "-", "-", "-", "-");
    }
    printf("\n");
}

void measure_print_row(const struct measure_plan *plan, const struct measure_library *library,
                       const char *algorithm, const struct measure_summary *summary,
                       const struct measure_summary *in_place)
{
    (plan->request->is_json ? print_json : print_text)(plan, library, algorithm, summary, in_place);
    fflush(stdout);
}
