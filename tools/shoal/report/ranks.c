/* SPDX-License-Identifier: MIT */
/* What ranks and hosts did and have: tables with bars, and from a trace the timeline and the units. */
#include "report/html.h"
#include "report/page.h"
#include "common/overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BAR_WIDTH = 200,
    BAR_HEIGHT = 12
};

/* Bars --------------------------------------------------------------------------------------------------- */

static void begin_bar(const struct page *page)
{
    fprintf(page->out, "<td class=\"bar\"><svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\">",
            BAR_WIDTH, BAR_HEIGHT);
}

/* From *at on, which is moved on; all of the width is `most`. */
static void put_bar(const struct page *page, const char *class, double value, double most, double *at)
{
    double width = most > 0.0 && isfinite(value) ? value / most * BAR_WIDTH : 0.0;
    fprintf(page->out, "<rect class=\"area %s\" x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"%d\"/>", class,
            *at, width > 0.0 ? width : 0.0, BAR_HEIGHT);
    *at += width;
}

static void end_bar(const struct page *page)
{
    fputs("</svg></td>", page->out);
}

static void put_cell(const struct page *page, double value)
{
    fputs("<td>", page->out);
    html_amount(page->out, value);
    fputs("</td>", page->out);
}

/* Times -------------------------------------------------------------------------------------------------- */

static double compute_of(const struct log_rank *rank)
{
    return rank->step_ms - rank->exposed_ms;
}

static size_t find_slowest(const struct log *log)
{
    size_t slowest = 0;
    for (size_t i = 1; i < log->n_ranks; i++) {
        slowest = compute_of(&log->ranks[i]) > compute_of(&log->ranks[slowest]) ? i : slowest;
    }
    return slowest;
}

/* In how many of the steps the rank computed longest. */
static double share_of_steps(const struct log *log, size_t rank)
{
    size_t count = 0;
    for (size_t i = 0; i < log->n_steps; i++) {
        count += log->values[LOG_SLOWEST][i] == (double)rank;
    }
    return log->n_steps > 0 ? 100.0 * (double)count / (double)log->n_steps : 0.0;
}

static void put_rank(const struct page *page, size_t index, double most, bool is_slowest)
{
    const struct log_rank *rank = &page->log->ranks[index];
    double share = overlap_share(rank->exposed_ms, rank->hidden_ms);
    double at = 0.0;
    fprintf(page->out, "<tr%s><th scope=\"row\">%zu</th><td class=\"text\">",
            is_slowest ? " class=\"slowest\"" : "", index);
    html_text(page->out, rank->host);
    fputs("</td>", page->out);
    begin_bar(page);
    put_bar(page, "compute_ms", compute_of(rank), most, &at);
    put_bar(page, "exposed_ms", rank->exposed_ms, most, &at);
    end_bar(page);
    put_cell(page, rank->step_ms);
    put_cell(page, compute_of(rank));
    put_cell(page, rank->exposed_ms);
    put_cell(page, rank->hidden_ms);
    fprintf(page->out, share >= 0.0 ? "<td>%.0f %%</td>" : "<td>\xe2\x80\x93</td>", 100.0 * share);
    fprintf(page->out, "<td>%.0f %%</td></tr>\n", share_of_steps(page->log, index));
}

static void put_times(const struct page *page)
{
    const struct log *log = page->log;
    size_t slowest = find_slowest(log);
    double most = 0.0;
    double fastest = compute_of(&log->ranks[slowest]);
    for (size_t i = 0; i < log->n_ranks; i++) {
        most = fmax(most, log->ranks[i].step_ms);
        fastest = fmin(fastest, compute_of(&log->ranks[i]));
    }
    if (log->n_ranks > 1) {
        fprintf(page->out, "<p>The slowest rank is <b id=\"slowest\">%zu</b>: it computes ", slowest);
        html_amount(page->out, compute_of(&log->ranks[slowest]));
        fputs(" ms a step, the fastest ", page->out);
        html_amount(page->out, fastest);
        fprintf(page->out,
                " ms. It was the slowest in %.0f %% of the steps; then the others wait for it.</p>\n",
                share_of_steps(log, slowest));
    }
    fputs(
        "<div class=\"scroll\"><table id=\"rank-times\"><thead><tr><th scope=\"col\">rank</th><th "
        "class=\"text\">host"
        "</th><th class=\"text\"><span class=\"key compute_ms\"></span>compute <span class=\"key "
        "exposed_ms\"></span>"
        "exposed</th><th>step ms</th><th>compute ms</th><th>exposed ms</th><th>hidden ms</th><th>hidden</th>"
        "<th>slowest</th></tr></thead><tbody>\n",
        page->out);
    for (size_t i = 0; i < log->n_ranks; i++) {
        put_rank(page, i, most, log->n_ranks > 1 && i == slowest);
    }
    fprintf(
        page->out,
        "</tbody></table></div>\n<p class=\"fine\">Means over %s. Compute and exposed communication add up "
        "to the step.</p>\n",
        log->has_middle ? "the middle half of each rank's steps by length, as in the summary of the run"
                        : "all steps of the log");
}

/* Memory ------------------------------------------------------------------------------------------------- */

static double sum_of(const double causes[LOG_N_CAUSES])
{
    double sum = 0.0;
    for (int i = 0; i < LOG_N_CAUSES; i++) {
        sum += causes[i];
    }
    return sum;
}

static void put_causes(const struct page *page, const double causes[LOG_N_CAUSES], double most)
{
    double at = 0.0;
    begin_bar(page);
    for (int i = 0; i < LOG_N_CAUSES; i++) {
        put_bar(page, log_causes[i].name, causes[i], most, &at);
    }
    end_bar(page);
    put_cell(page, sum_of(causes));
    for (int i = 0; i < LOG_N_CAUSES; i++) {
        put_cell(page, causes[i]);
    }
    fputs("</tr>\n", page->out);
}

static void begin_causes(const struct page *page, const char *id, const char *first, const char *second)
{
    fprintf(page->out,
            "<div class=\"scroll\"><table id=\"%s\"><thead><tr><th scope=\"col\">%s</th><th "
            "class=\"text\">%s</th>"
            "<th class=\"text\">MB</th><th>all</th>",
            id, first, second);
    for (int i = 0; i < LOG_N_CAUSES; i++) {
        fprintf(page->out, "<th title=\"%s\"><span class=\"key %s\"></span>%s</th>", log_causes[i].meaning,
                log_causes[i].name, log_causes[i].name);
    }
    fputs("</tr></thead><tbody>\n", page->out);
}

static size_t add_host(const struct log *log, size_t index, double causes[LOG_N_CAUSES])
{
    size_t n_ranks = 0;
    for (size_t i = index; i < log->n_ranks; i++) {
        if (strcmp(log->ranks[i].host, log->ranks[index].host) == 0) {
            n_ranks++;
            for (int k = 0; k < LOG_N_CAUSES; k++) {
                causes[k] += log->ranks[i].causes_mb[k];
            }
        }
    }
    return n_ranks;
}

static void put_hosts(const struct page *page)
{
    const struct log *log = page->log;
    double most = 0.0;
    for (size_t i = 0; i < log->n_ranks; i++) {
        double causes[LOG_N_CAUSES] = {0};
        (void)add_host(log, i, causes);
        most = fmax(most, sum_of(causes));
    }
    begin_causes(page, "host-memory", "host", "ranks");
    for (size_t i = 0; i < log->n_ranks; i++) {
        double causes[LOG_N_CAUSES] = {0};
        if (!log_is_first_of_host(log, i)) {
            continue;
        }
        size_t n_ranks = add_host(log, i, causes);
        fputs("<tr><th scope=\"row\">", page->out);
        html_text(page->out, log->ranks[i].host);
        fprintf(page->out, "</th><td class=\"text\">%zu</td>", n_ranks);
        put_causes(page, causes, most);
    }
    fputs("</tbody></table></div>\n", page->out);
}

static void put_memory(const struct page *page)
{
    const struct log *log = page->log;
    double most = 0.0;
    for (size_t i = 0; i < log->n_ranks; i++) {
        most = fmax(most, sum_of(log->ranks[i].causes_mb));
    }
    fputs("<h3>Memory by cause</h3>\n", page->out);
    begin_causes(page, "rank-memory", "rank", "host");
    for (size_t i = 0; i < log->n_ranks; i++) {
        fprintf(page->out, "<tr><th scope=\"row\">%zu</th><td class=\"text\">", i);
        html_text(page->out, log->ranks[i].host);
        fputs("</td>", page->out);
        put_causes(page, log->ranks[i].causes_mb, most);
    }
    fputs("</tbody></table></div>\n", page->out);
    if (log->n_ranks > 1) {
        put_hosts(page);
    }
    fputs("<p class=\"fine\">Gathered: whole parameters, of which ranks of a host share one copy; each "
          "counts its part. "
          "Rest: activations, batches, code and libraries.</p>\n",
          page->out);
}

bool page_put_ranks(const struct page *page)
{
    if (page->log->has_ranks) {
        put_times(page);
    } else {
        fputs("<p class=\"fine\">The log says nothing of single ranks yet.</p>\n", page->out);
    }
    if (page->log->has_causes) {
        put_memory(page);
    }
    return true;
}

/* A trace ------------------------------------------------------------------------------------------------ */

static void put_unit(const struct page *page, const struct trace_unit *unit, double most)
{
    double at = 0.0;
    fputs("<tr><th scope=\"row\" class=\"text\">", page->out);
    html_text(page->out, unit->unit);
    fputs("</th>", page->out);
    begin_bar(page);
    put_bar(page, "gather", unit->exposed[WORK_GATHER], most, &at);
    put_bar(page, "reduce", unit->exposed[WORK_REDUCE], most, &at);
    put_bar(page, "other", unit->exposed[WORK_OTHER], most, &at);
    end_bar(page);
    fprintf(
        page->out, "<td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.1f</td></tr>\n",
        trace_unit_exposed(unit) * 1e-3, unit->exposed[WORK_GATHER] * 1e-3, unit->exposed[WORK_REDUCE] * 1e-3,
        unit->exposed[WORK_OTHER] * 1e-3, unit->busy * 1e-3, unit->bytes / 1024.0);
}

static bool put_units(const struct page *page)
{
    size_t n_units = 0;
    struct trace_unit *units = trace_list_units(page->trace, NULL, &n_units);
    if (!units) {
        return false;
    }
    double most = n_units > 0 ? trace_unit_exposed(&units[0]) : 0.0;
    if (n_units > 0) {
        fputs("<h3>Exposed communication by unit</h3>\n", page->out);
        if (most > 0.0) {
            fputs("<p>Compute waits longest for <b id=\"worst-unit\">", page->out);
            html_text(page->out, units[0].unit);
            fprintf(page->out, "</b>: %.3f ms of a step.</p>\n", most * 1e-3);
        }
        fputs(
            "<div class=\"scroll\"><table id=\"units\"><thead><tr><th class=\"text\" scope=\"col\">unit</th>"
            "<th class=\"text\"><span class=\"key gather\"></span>gather <span class=\"key "
            "reduce\"></span>reduction "
            "<span class=\"key other\"></span>other</th><th>exposed ms</th><th>gather ms</th><th>reduction "
            "ms</th>"
            "<th>other ms</th><th>on lanes ms</th><th>KiB</th></tr></thead><tbody>\n",
            page->out);
    }
    for (size_t i = 0; i < n_units; i++) {
        put_unit(page, &units[i], most);
    }
    if (n_units > 0) {
        fputs("</tbody></table></div>\n<p class=\"fine\">Of a step and rank: means over the middle half of "
              "the steps in "
              "the trace, as <code>shoal trace</code> prints them.</p>\n",
              page->out);
    }
    free(units);
    return true;
}

static void put_traced_ranks(const struct page *page)
{
    fputs(
        "<h3>Ranks in the trace</h3>\n<div class=\"scroll\"><table id=\"trace-ranks\"><thead><tr>"
        "<th scope=\"col\">rank</th><th>step ms</th><th>compute ms</th><th>exposed ms</th><th>hidden ms</th>"
        "<th>hidden</th></tr></thead><tbody>\n",
        page->out);
    for (size_t i = 0; i < page->trace->n_ranks; i++) {
        int rank = page->trace->ranks[i];
        struct trace_times times = trace_mean_times(page->trace, trace_find_steps(page->trace, rank), NULL);
        double share = overlap_share(times.exposed, times.hidden);
        fprintf(page->out,
                "<tr><th scope=\"row\">%d</th><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.0f "
                "%%</td>"
                "</tr>\n",
                rank, times.step * 1e-3, times.compute * 1e-3, times.exposed * 1e-3, times.hidden * 1e-3,
                share > 0.0 ? 100.0 * share : 0.0);
    }
    fputs("</tbody></table></div>\n", page->out);
}

/* The run has written one, or will, but it is not there. */
static void put_lost_trace(const struct page *page)
{
    const char *path = json_string_value(json_object_get(page->log->run, "trace"));
    if (path) {
        fputs("<p class=\"notice\">The trace of the run was to be in ", page->out);
        html_text(page->out, path);
        fputs(", and is not there. <code>shoal report LOG TRACE</code> takes it from elsewhere.</p>\n",
              page->out);
    }
}

bool page_put_timeline(const struct page *page)
{
    if (!page->trace) {
        put_lost_trace(page);
        fputs(
            "<p class=\"fine\">There is no trace. With one this page has the timeline of a step, with all "
            "ranks and "
            "lanes, and the exposed communication of each unit: <code>shoal train --trace FILE</code>, then "
            "<code>shoal report LOG FILE</code>.</p>\n",
            page->out);
        return true;
    }
    fputs("<div id=\"timeline\" class=\"timeline\"><div class=\"scroll\">", page->out);
    bool is_good = trace_draw_svg(page->out, page->trace, page->step, false);
    fputs("</div></div>\n", page->out);
    if (is_good) {
        put_traced_ranks(page);
    }
    return is_good && put_units(page);
}
