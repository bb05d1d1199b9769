/* SPDX-License-Identifier: MIT */
/* The parts of the page by name, and what is at its top and its bottom. */
#include "report/page.h"
#include "report/assets.h"
#include "report/chart.h"
#include "report/data.h"
#include "report/html.h"
#include "common/overlap.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Values of the log -------------------------------------------------------------------------------------- */

static const json_t *config_of(const struct page *page, const char *name)
{
    return json_object_get(json_object_get(page->log->run, "config"), name);
}

static double number_of(const struct page *page, const char *name)
{
    const json_t *value = config_of(page, name);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

static double end_of(const struct page *page, const char *name)
{
    const json_t *value = json_object_get(page->log->end, name);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static double last_of(const struct log *log, enum log_field field)
{
    for (size_t i = log->n_steps; i > 0; i--) {
        if (isfinite(log->values[field][i - 1])) {
            return log->values[field][i - 1];
        }
    }
    return (double)NAN;
}

/* Means over the middle half of the steps by length: of rank 0, where the end of the run says nothing of all ranks. */
struct means {
    double step;
    double exposed;
    double hidden;
};

static bool find_means(const struct log *log, struct means *means)
{
    size_t *order = calloc(log->n_steps + 1, sizeof *order);
    bool *is_middle = calloc(log->n_steps + 1, sizeof *is_middle);
    bool is_good = order && is_middle;
    size_t count = 0;
    *means = (struct means){0};
    if (is_good) {
        (void)overlap_find_middle(log->values[LOG_STEP_MS], log->n_steps, order, is_middle);
    }
    for (size_t i = 0; is_good && i < log->n_steps; i++) {
        if (is_middle[i] && isfinite(log->values[LOG_STEP_MS][i])) {
            means->step += log->values[LOG_STEP_MS][i];
            means->exposed += log->values[LOG_EXPOSED_MS][i];
            means->hidden += log->values[LOG_HIDDEN_MS][i];
            count++;
        }
    }
    means->step /= (double)(count > 0 ? count : 1);
    means->exposed /= (double)(count > 0 ? count : 1);
    means->hidden /= (double)(count > 0 ? count : 1);
    free(order);
    free(is_middle);
    return is_good;
}

/* The top ------------------------------------------------------------------------------------------------ */

static bool put_title(const struct page *page)
{
    fputs("Shoal: ", page->out);
    html_text(page->out, page->log_path);
    return true;
}

static bool put_headline(const struct page *page)
{
    double parameters = number_of(page, "parameters");
    double n_ranks = number_of(page, "ranks");
    const char *mode = json_string_value(config_of(page, "mode"));
    if (isfinite(parameters)) {
        fprintf(page->out,
                parameters >= 1e9 ? "A GPT of %.2f billion parameters" : "A GPT of %.2f million parameters",
                parameters >= 1e9 ? parameters * 1e-9 : parameters * 1e-6);
    } else {
        fputs("A training", page->out);
    }
    fputs(", ", page->out);
    html_text(page->out, mode ? mode : "trained");
    fprintf(page->out, " on %.0f rank%s", isfinite(n_ranks) ? n_ranks : 1.0, n_ranks > 1.0 ? "s" : "");
    return true;
}

static bool put_subline(const struct page *page)
{
    const json_t *hosts = json_object_get(page->log->run, "hosts");
    const char *data = json_string_value(config_of(page, "data"));
    const char *first = json_string_value(json_array_get(hosts, 0));
    size_t n_others = 0;
    for (size_t i = 1; i < page->log->n_ranks; i++) {
        n_others += log_is_first_of_host(page->log, i);
    }
    html_text(page->out, data ? data : "");
    fputs(" \xc2\xb7 ", page->out);
    html_text(page->out, first ? first : "");
    if (n_others > 0) {
        fprintf(page->out, " and %zu other host%s", n_others, n_others > 1 ? "s" : "");
    }
    fputs(" \xc2\xb7 ", page->out);
    html_text(page->out, text_of(page->log->run, "time"));
    fputs(" \xc2\xb7 shoal ", page->out);
    html_text(page->out, text_of(page->log->run, "version"));
    return true;
}

static void put_notice(const struct page *page, const char *text, size_t count)
{
    fprintf(page->out, "<p class=\"notice\">%s", text);
    if (count > 0) {
        fprintf(page->out, " (%zu)", count);
    }
    fputs("</p>\n", page->out);
}

enum {
    PLANNED_BYTES = 32
};

/* "of 400"; "" if the log does not say how many there were to be. */
static void write_planned(const struct page *page, char note[PLANNED_BYTES])
{
    double n_planned = number_of(page, "steps");
    (void)snprintf(note, PLANNED_BYTES, fabs(n_planned) > 1e15 ? "of %.4g" : "of %.0f", n_planned);
    if (!isfinite(n_planned)) {
        note[0] = '\0';
    }
}

/* Since which step losses are no numbers; 0 if the last one is a number. */
static int64_t find_lost_step(const struct log *log)
{
    size_t n_good = log->n_steps;
    while (n_good > 0 && !isfinite(log->values[LOG_LOSS][n_good - 1])) {
        n_good--;
    }
    return n_good < log->n_steps ? log->steps[n_good]
                                 : json_integer_value(json_object_get(log->end, "lost_step"));
}

static void put_lost_step(const struct page *page)
{
    int64_t lost = find_lost_step(page->log);
    if (lost > 0) {
        fprintf(page->out, "<p class=\"notice\">The loss is not a number since step %" PRId64 ".</p>\n",
                lost);
    }
}

/* Between the first step and the last: a run went on without --log, or lines were damaged. */
static size_t count_missing(const struct log *log)
{
    size_t n_steps = log->n_steps;
    return n_steps == 0 ? 0 : (size_t)(log->steps[n_steps - 1] - log->steps[0]) + 1 - n_steps;
}

static bool put_notices(const struct page *page)
{
    const struct log *log = page->log;
    char planned[PLANNED_BYTES];
    write_planned(page, planned);
    if (log->n_steps == 0) {
        put_notice(page, "The log has no steps yet.", 0);
    } else if (json_object_get(log->end, "signal")) {
        fprintf(page->out, "<p class=\"notice\">Signal %.0f ended the run after step %" PRId64 "%s%s.</p>\n",
                end_of(page, "signal"), log->steps[log->n_steps - 1], planned[0] ? " " : "", planned);
    } else if (!log->end) {
        fprintf(page->out,
                "<p class=\"notice\">The run has not ended well, or is not done: the log ends after step "
                "%" PRId64 "%s%s.</p>\n",
                log->steps[log->n_steps - 1], planned[0] ? " " : "", planned);
    }
    put_lost_step(page);
    if (log->n_damaged > 0) {
        put_notice(page, "Lines that are damaged were left out", log->n_damaged);
    }
    if (log->n_others > 0) {
        put_notice(
            page,
            "The log has several runs. This is the last one; lines of steps of the others were left out",
            log->n_others);
    }
    if (count_missing(log) > 0) {
        put_notice(page, "Steps of which the log has no line", count_missing(log));
    }
    if (log->n_overtaken > 0) {
        put_notice(page, "Lines of steps that a later run repeated were left out", log->n_overtaken);
    }
    return true;
}

static void begin_tile(const struct page *page, const char *name)
{
    fprintf(page->out, "<div><dt>%s</dt><dd>", name);
}

static void end_tile(const struct page *page, const char *unit, const char *note)
{
    fprintf(page->out, "%s%s%s</dd>", *unit ? "<span>" : "", unit, *unit ? "</span>" : "");
    fprintf(page->out, "<dd class=\"note\">%s</dd></div>\n", note);
}

static void put_losses(const struct page *page)
{
    const struct log *log = page->log;
    char note[96] = "";
    double best = HUGE_VAL;
    int64_t best_step = 0;
    begin_tile(page, "Loss");
    chart_number(page->out, LOG_LOSS, find_lost_step(log) > 0 ? (double)NAN : last_of(log, LOG_LOSS));
    if (log->n_steps > 0 && isfinite(log->values[LOG_LOSS][0])) {
        double loss = log->values[LOG_LOSS][0];
        (void)snprintf(note, sizeof note,
                       fabs(loss) > 1e12 ? "%.4g at step %" PRId64 : "%.4f at step %" PRId64, loss,
                       log->steps[0]);
    }
    end_tile(page, "", note);
    for (size_t i = 0; i < log->n_steps; i++) {
        if (isfinite(log->values[LOG_VAL_LOSS][i]) && log->values[LOG_VAL_LOSS][i] < best) {
            best = log->values[LOG_VAL_LOSS][i];
            best_step = log->steps[i];
        }
    }
    if (best_step > 0) {
        begin_tile(page, "Validation loss");
        chart_number(page->out, LOG_VAL_LOSS, last_of(log, LOG_VAL_LOSS));
        (void)snprintf(note, sizeof note,
                       fabs(best) > 1e12 ? "best %.4g at step %" PRId64 : "best %.4f at step %" PRId64, best,
                       best_step);
        end_tile(page, "", note);
    }
}

static bool put_tiles(const struct page *page)
{
    struct means means;
    char note[96];
    if (!find_means(page->log, &means)) {
        return false;
    }
    bool has_end = isfinite(end_of(page, "step_ms")) && isfinite(end_of(page, "exposed_ms"));
    double step = has_end ? end_of(page, "step_ms") : means.step;
    double exposed = has_end ? end_of(page, "exposed_ms") : means.exposed;
    double hidden = has_end ? end_of(page, "hidden_share") : overlap_share(means.exposed, means.hidden);
    double tokens = number_of(page, "samples_per_step") * number_of(page, "context");
    put_losses(page);
    begin_tile(page, "Tokens a second");
    double speed = step > 0.0 && isfinite(tokens) ? tokens / (step * 1e-3) : 0.0;
    fprintf(page->out, "%.0f", isfinite(end_of(page, "tokens_per_s")) ? end_of(page, "tokens_per_s") : speed);
    (void)snprintf(note, sizeof note, "%.0f a step", isfinite(tokens) ? tokens : 0.0);
    end_tile(page, "", note);
    begin_tile(page, "Step");
    html_amount(page->out, step);
    (void)snprintf(note, sizeof note, "compute %.2f + exposed %.2f", step - exposed, exposed);
    end_tile(page, "ms", note);
    begin_tile(page, "Hidden");
    fprintf(page->out, hidden >= 0.0 ? "%.0f" : "\xe2\x80\x93", 100.0 * hidden);
    end_tile(page, hidden >= 0.0 ? "%" : "", hidden >= 0.0 ? "of communication" : "no communication");
    begin_tile(page, "Memory");
    html_amount(page->out, last_of(page->log, LOG_MEMORY_MB));
    end_tile(page, "MB", "the rank with most");
    begin_tile(page, "Steps");
    fprintf(page->out, "%" PRId64, page->log->n_steps > 0 ? page->log->steps[page->log->n_steps - 1] : 0);
    write_planned(page, note);
    end_tile(page, "", note);
    return true;
}

/* Charts ------------------------------------------------------------------------------------------------- */

static void put_readout(const struct page *page, const struct chart *chart)
{
    fputs("<ul class=\"readout\">", page->out);
    for (size_t i = 0; i < chart->n_series; i++) {
        enum log_field field = chart->series[i].field;
        double last = last_of(page->log, field);
        if (field == LOG_VAL_LOSS && !isfinite(last)) {
            continue;
        }
        fprintf(page->out, "<li class=\"%s\"><i></i>%s <b data-field=\"%s\" data-unit=\"%s\">",
                log_fields[field].name, chart->series[i].label, log_fields[field].name, chart->unit);
        chart_number(page->out, field, last);
        fprintf(page->out, "%s</b></li>", chart->unit);
    }
    fputs("</ul>", page->out);
}

static bool put_charts(const struct page *page)
{
    bool is_good = true;
    for (size_t i = 0; i < n_charts && is_good; i++) {
        const struct chart *chart = &charts[i];
        if (!chart_has_values(chart, page->log)) {
            continue;
        }
        fprintf(page->out,
                "<figure class=\"chart%s\" data-chart=\"%s\" data-stacked=\"%d\" "
                "data-zero=\"%d\">\n<figcaption><h3>%s"
                "</h3>",
                chart->is_half ? " half" : "", chart->name, chart->is_stacked, chart->from_zero,
                chart->title);
        put_readout(page, chart);
        fputs("</figcaption>\n", page->out);
        is_good = chart_draw(page->out, chart, page->log);
        fputs("</figure>\n", page->out);
    }
    return is_good;
}

/* The bottom --------------------------------------------------------------------------------------------- */

static void put_value(FILE *out, const json_t *value)
{
    if (json_is_string(value)) {
        html_text(out, json_string_value(value));
    } else if (json_is_integer(value)) {
        fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else if (json_is_number(value)) {
        fprintf(out, "%.9g", json_number_value(value));
    } else {
        fputs(json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "\xe2\x80\x93", out);
    }
}

static void put_pair(const struct page *page, const char *name, const json_t *value)
{
    fputs("<div><dt>", page->out);
    html_text(page->out, name);
    fputs("</dt><dd>", page->out);
    put_value(page->out, value);
    fputs("</dd></div>\n", page->out);
}

static bool put_configuration(const struct page *page)
{
    const char *name;
    json_t *value;
    const json_t *digest = json_object_get(page->log->end, "digest");
    fputs("<dl class=\"pairs\">\n", page->out);
    json_object_foreach(json_object_get(page->log->run, "config"), name, value)
    {
        put_pair(page, name, value);
    }
    fputs("</dl>\n", page->out);
    if (digest) {
        fputs("<p class=\"digest\">digest of parameters <code id=\"digest\">", page->out);
        put_value(page->out, digest);
        fputs("</code></p>\n", page->out);
    }
    fputs("<details><summary>Fields of the log</summary><dl class=\"fields\">\n", page->out);
    json_object_foreach(json_object_get(page->log->run, "fields"), name, value)
    {
        put_pair(page, name, value);
    }
    fputs("</dl></details>\n", page->out);
    return true;
}

static bool put_footer(const struct page *page)
{
    fputs("Made by <code>shoal report ", page->out);
    html_text(page->out, page->log_path);
    if (page->trace) {
        fputs(" ", page->out);
        html_text(page->out, page->trace_path);
    }
    fputs("</code>. This file needs nothing else, and asks for nothing.", page->out);
    return true;
}

/* The template ------------------------------------------------------------------------------------------- */

static bool put_style(const struct page *page)
{
    return fwrite(report_style, 1, report_style_bytes, page->out) == report_style_bytes;
}

static bool put_script(const struct page *page)
{
    return fwrite(report_script, 1, report_script_bytes, page->out) == report_script_bytes;
}

static bool put_style_hash(const struct page *page)
{
    html_hash(page->out, report_style_sha256);
    return true;
}

static bool put_script_hash(const struct page *page)
{
    html_hash(page->out, report_script_sha256);
    return true;
}

static bool put_data(const struct page *page)
{
    return data_write(page->out, page->log, page->trace, page->step);
}

static const struct {
    const char *name;
    bool (*put)(const struct page *page);
} parts[] = {{"charts", put_charts},
             {"configuration", put_configuration},
             {"data", put_data},
             {"footer", put_footer},
             {"headline", put_headline},
             {"notices", put_notices},
             {"ranks", page_put_ranks},
             {"script", put_script},
             {"script-hash", put_script_hash},
             {"style", put_style},
             {"style-hash", put_style_hash},
             {"subline", put_subline},
             {"tiles", put_tiles},
             {"timeline", page_put_timeline},
             {"title", put_title}};

/* Returns false if memory runs out, or the template names a part that there is not. */
static bool put_part(const struct page *page, const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strlen(parts[i].name) == length && memcmp(parts[i].name, name, length) == 0) {
            return parts[i].put(page);
        }
    }
    return false;
}

bool page_write(const struct page *page)
{
    const char *at = report_page;
    const char *begin;
    bool is_good = true;
    while (is_good && (begin = strstr(at, "{{")) != NULL) {
        const char *end = strstr(begin, "}}");
        (void)fwrite(at, 1, (size_t)(begin - at), page->out);
        is_good = end && put_part(page, begin + 2, (size_t)(end - begin - 2));
        at = is_good ? end + 2 : at;
    }
    fputs(at, page->out);
    return is_good;
}
