/* SPDX-License-Identifier: MIT */
/* Draws the charts of the page in the width of the window, lets readers zoom and look at single steps, and does the same
   for the timeline. Nothing is fetched: all values are in the element #data. */
'use strict';
(() => {
    const SVG = 'http://www.w3.org/2000/svg';
    const LEFT = 56, RIGHT = 10, TOP = 10, BOTTOM = 24;
    const MOST_TICKS = 100; /* where numbers are so large that adding a tick changes nothing, they would not end */
    const LARGEST = 1e300; /* that is drawn: sums and differences of larger ones are infinite */
    const NONE = '\u2013';
    const data = JSON.parse(document.getElementById('data').textContent);

    /* Values -------------------------------------------------------------------------------------------- */

    function bytesOf(text) {
        if (Uint8Array.fromBase64) {
            return Uint8Array.fromBase64(text);
        }
        const raw = atob(text), bytes = new Uint8Array(raw.length);
        for (let i = 0; i < raw.length; i++) {
            bytes[i] = raw.charCodeAt(i);
        }
        return bytes;
    }

    /* Typed arrays have the byte order of the machine; the page is little-endian. */
    function unpack(bytes, size, read) {
        const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
        const values = new Float64Array(bytes.byteLength / size);
        for (let i = 0; i < values.length; i++) {
            values[i] = read(view, i * size);
        }
        return values;
    }
    const u32 = text => unpack(bytesOf(text), 4, (view, at) => view.getUint32(at, true));
    const f64 = text => unpack(bytesOf(text), 8, (view, at) => view.getFloat64(at, true));

    function decode(column) {
        if (column.kind === 'f64') {
            return f64(column.data);
        }
        if (column.kind === 'u32') {
            const values = u32(column.data);
            for (let i = 0; i < values.length; i++) {
                values[i] = values[i] === 0xffffffff ? NaN : values[i] / column.per;
            }
            return values;
        }
        const values = new Float64Array(data.n).fill(NaN);
        const at = u32(column.at), given = f64(column.data);
        at.forEach((index, i) => { values[index] = given[i]; });
        return values;
    }

    const columns = {};
    for (const name in data.columns) {
        columns[name] = decode(data.columns[name]);
    }
    const numbers = data.numbers ? decode(data.numbers) : null;
    const stepAt = index => numbers ? numbers[index] : data.first + index;
    const full = { first: data.n ? stepAt(0) : 1, last: data.n ? stepAt(data.n - 1) : 1 };
    const view = { ...full };

    /* The first index whose step is not before `step`. */
    function indexOf(step) {
        if (!numbers) {
            return Math.max(0, Math.min(data.n, Math.ceil(step - data.first)));
        }
        let low = 0, high = data.n;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (numbers[middle] < step) { low = middle + 1; } else { high = middle; }
        }
        return low;
    }
    function nearest(step) {
        const after = Math.min(indexOf(step), data.n - 1);
        return after > 0 && step - stepAt(after - 1) < stepAt(after) - step ? after - 1 : after;
    }

    /* As the log has it: times and memory in thousandths, other numbers with all their digits. */
    function exact(field, value) {
        if (!Number.isFinite(value)) {
            return NONE;
        }
        return data.columns[field].per === 1000 ? value.toFixed(3) : String(value);
    }

    /* Drawing ------------------------------------------------------------------------------------------- */

    function make(parent, name, attributes, text) {
        const element = document.createElementNS(SVG, name);
        for (const key in attributes) {
            element.setAttribute(key, attributes[key]);
        }
        if (text !== undefined) {
            element.textContent = text;
        }
        parent.appendChild(element);
        return element;
    }

    function chooseTick(length, count) {
        const least = length / count || 1, power = 10 ** Math.floor(Math.log10(least)), times = least / power;
        return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
    }
    const short = value => String(Number(value.toPrecision(6)));

    const charts = Array.from(document.querySelectorAll('figure.chart'), figure => ({
        figure,
        name: figure.dataset.chart,
        svg: figure.querySelector('svg'),
        isStacked: figure.dataset.stacked === '1',
        fromZero: figure.dataset.zero === '1',
        series: Array.from(figure.querySelectorAll('b[data-field]'), element => ({
            element, field: element.dataset.field, unit: element.dataset.unit, still: element.textContent
        }))
    }));

    /* What is drawn: in a stack the sums. */
    for (const chart of charts) {
        chart.series.forEach((series, k) => {
            series.values = columns[series.field].map(value => Math.max(-LARGEST, Math.min(LARGEST, value)));
            if (chart.isStacked && k > 0) {
                const below = chart.series[k - 1].values;
                series.values = series.values.map((value, i) => value + below[i]);
            }
        });
    }

    function findRange(chart, begin, end) {
        let low = Infinity, high = -Infinity;
        for (let k = 0; k < chart.series.length; k++) {
            const all = chart.series[k].values, values = new Float64Array(end - begin);
            let count = 0;
            for (let i = begin; i < end; i++) {
                if (Number.isFinite(all[i])) { values[count++] = all[i]; }
            }
            if (!count) { continue; }
            let least = Infinity, most = -Infinity;
            for (let i = 0; i < count; i++) {
                least = values[i] < least ? values[i] : least;
                most = values[i] > most ? values[i] : most;
            }
            if (chart.fromZero) {
                const stride = Math.ceil(count / 4096); /* a sample says where nearly all of them are */
                const sample = values.subarray(0, count).filter((value, i) => i % stride === 0).sort();
                most = Math.min(most, sample[Math.floor(0.99 * (sample.length - 1))] * 1.5 || most);
                least = 0;
            }
            low = Math.min(low, least);
            high = Math.max(high, most);
        }
        if (!(high >= low)) { return { low: 0, high: 1, tick: 0.5 }; }
        const tick = chooseTick(high > low ? high - low : 1, 4);
        low = Math.floor(low / tick) * tick;
        high = Math.ceil(high / tick) * tick;
        return { low, high: high > low ? high : low + tick, tick };
    }

    /* Steps that share a pixel are one: lowest, highest, mean. */
    function bucketsOf(chart, k, begin, end) {
        const buckets = [], values = chart.series[k].values;
        let bucket = null;
        for (let i = begin; i < end; i++) {
            const value = values[i];
            if (!Number.isFinite(value)) { continue; }
            const x = chart.x(stepAt(i)), pixel = Math.floor(x);
            if (!bucket || bucket.pixel !== pixel) {
                bucket = { pixel, x: 0, low: value, high: value, sum: 0, count: 0 };
                buckets.push(bucket);
            }
            bucket.low = value < bucket.low ? value : bucket.low;
            bucket.high = value > bucket.high ? value : bucket.high;
            bucket.sum += value;
            bucket.x += x;
            bucket.count++;
        }
        for (const one of buckets) {
            one.x /= one.count;
            one.mean = one.sum / one.count;
        }
        return buckets;
    }
    const join = (points, y) => points.map((point, i) =>
        (i ? 'L' : 'M') + point.x.toFixed(1) + ' ' + y(point).toFixed(1)).join('');

    function drawSeries(chart, k, begin, end) {
        const field = chart.series[k].field, buckets = bucketsOf(chart, k, begin, end);
        if (!buckets.length) { return; }
        const mean = join(buckets, bucket => chart.y(bucket.mean));
        const last = buckets[buckets.length - 1];
        if (chart.isStacked) {
            const bottom = TOP + chart.height;
            make(chart.svg, 'path', {
                class: 'area ' + field,
                d: `${mean}L${last.x.toFixed(1)} ${bottom}L${buckets[0].x.toFixed(1)} ${bottom}Z`
            });
            return;
        }
        if (buckets.some(bucket => bucket.high > bucket.low)) {
            const back = buckets.slice().reverse();
            make(chart.svg, 'path', {
                class: 'band ' + field,
                d: join(buckets, bucket => chart.y(bucket.high)) + join(back, bucket => chart.y(bucket.low)).replace('M', 'L') + 'Z'
            });
        }
        make(chart.svg, 'path', { class: 'line ' + field, d: mean });
        if (field === 'val_loss' || buckets.length === 1) {
            for (const bucket of buckets) {
                make(chart.svg, 'circle', { class: 'dot ' + field, cx: bucket.x.toFixed(1), cy: chart.y(bucket.mean).toFixed(1), r: 2.5 });
            }
        }
    }

    function drawAxes(chart, range) {
        const { svg, width } = chart, bottom = TOP + chart.height;
        for (let i = 0; i < MOST_TICKS && range.low + i * range.tick <= range.high + range.tick * 0.01; i++) {
            const value = range.low + i * range.tick, y = chart.y(value).toFixed(1);
            make(svg, 'line', { class: 'grid', x1: LEFT, x2: LEFT + width, y1: y, y2: y });
            make(svg, 'text', { class: 'y', x: LEFT - 8, y: Number(y) + 4 }, short(Math.abs(value) < range.tick * 1e-6 ? 0 : value));
        }
        const tick = Math.max(1, chooseTick(view.last - view.first, Math.max(2, width / 110)));
        const begin = Math.ceil(view.first / tick) * tick;
        for (let i = 0; i < MOST_TICKS && begin + i * tick <= view.last; i++) {
            const step = begin + i * tick, x = chart.x(step);
            if (x > LEFT + 48 && x < LEFT + width - 56) {
                make(svg, 'text', { class: 'x', x: x.toFixed(1), y: bottom + 17 }, short(step));
            }
        }
        make(svg, 'text', { class: 'x first', x: LEFT, y: bottom + 17 }, String(view.first));
        make(svg, 'text', { class: 'x last', x: LEFT + width, y: bottom + 17 }, String(view.last));
        for (const step of data.resumed) {
            if (step + 0.5 > view.first && step + 0.5 < view.last) {
                const x = chart.x(step + 0.5).toFixed(1);
                make(svg, 'line', { class: 'resumed', x1: x, x2: x, y1: TOP, y2: bottom });
            }
        }
    }

    function drawChart(chart) {
        const whole = chart.svg.clientWidth || 600, height = chart.figure.classList.contains('half') ? 160 : 220;
        const begin = indexOf(view.first), end = Math.min(data.n, indexOf(view.last) + 1);
        const range = findRange(chart, begin, end);
        const length = view.last - view.first;
        chart.width = whole - LEFT - RIGHT;
        chart.height = height - TOP - BOTTOM;
        chart.x = step => LEFT + (length > 0 ? (step - view.first) / length : 0.5) * chart.width;
        const span = range.high - range.low;
        chart.y = value => TOP + (1 - (span > 0 ? Math.max(0, Math.min(1, (value - range.low) / span)) : 0.5)) * chart.height;
        chart.svg.replaceChildren();
        chart.svg.setAttribute('viewBox', `0 0 ${whole} ${height}`);
        chart.svg.setAttribute('tabindex', '0');
        chart.svg.dataset.first = view.first;
        chart.svg.dataset.last = view.last;
        drawAxes(chart, range);
        for (let k = chart.series.length; k > 0; k--) {
            drawSeries(chart, k - 1, begin, end);
        }
        chart.marks = make(chart.svg, 'g', {});
        make(chart.svg, 'rect', { class: 'catch', x: LEFT, y: 0, width: Math.max(0, chart.width), height });
    }

    /* One step under the pointer ------------------------------------------------------------------------ */

    const at = document.getElementById('at');
    let cursor = -1;

    function mark(chart, index) {
        chart.marks.replaceChildren();
        if (index < 0) { return; }
        const x = chart.x(stepAt(index)).toFixed(1);
        make(chart.marks, 'line', { class: 'cursor', x1: x, x2: x, y1: TOP, y2: TOP + chart.height });
        chart.series.forEach((series, k) => {
            const value = series.values[index];
            if (Number.isFinite(value)) {
                make(chart.marks, 'circle', { class: 'dot ' + series.field, cx: x, cy: chart.y(value).toFixed(1), r: 3.5 });
            }
        });
    }

    function point(index) {
        cursor = index;
        for (const chart of charts) {
            mark(chart, index);
            for (const series of chart.series) {
                const value = index < 0 ? NaN : columns[series.field][index];
                const text = exact(series.field, value);
                series.element.textContent = index < 0 ? series.still : text === NONE ? text : text + series.unit;
            }
        }
        at.textContent = index < 0 ? '' :
            `Step ${stepAt(index)}: ${exact('step_ms', columns.step_ms[index])} ms, ` +
            `${exact('outside_ms', columns.outside_ms[index])} ms outside; slowest rank ${exact('slowest', columns.slowest[index])}, ` +
            `which computes ${exact('compute_ms_max', columns.compute_ms_max[index])} ms`;
    }

    /* Zoom ---------------------------------------------------------------------------------------------- */

    const from = document.getElementById('from'), to = document.getElementById('to'), form = document.getElementById('zoom');

    function draw() {
        for (const chart of charts) { drawChart(chart); }
        if (cursor >= 0) { point(cursor); }
    }

    function zoom(first, last) {
        let low = Math.round(Math.min(first, last)), high = Math.round(Math.max(first, last));
        low = Math.max(full.first, Math.min(low, full.last));
        high = Math.max(low, Math.min(high, full.last));
        if (high === low && full.last > full.first) {
            if (high < full.last) { high++; } else { low--; }
        }
        view.first = low;
        view.last = high;
        from.value = low;
        to.value = high;
        cursor = -1;
        draw();
        point(-1);
    }

    function listen(chart) {
        let begin = null;
        const place = event => {
            const box = chart.svg.getBoundingClientRect();
            const part = (event.clientX - box.left - LEFT) / (chart.width || 1);
            return view.first + Math.max(0, Math.min(1, part)) * (view.last - view.first);
        };
        chart.svg.addEventListener('pointermove', event => {
            const step = place(event);
            point(nearest(step));
            if (begin !== null) {
                const x = Math.min(chart.x(begin), chart.x(step)), width = Math.abs(chart.x(begin) - chart.x(step));
                make(chart.marks, 'rect', { class: 'select', x, y: TOP, width, height: chart.height });
            }
        });
        chart.svg.addEventListener('pointerleave', () => { if (begin === null) { point(-1); } });
        chart.svg.addEventListener('pointerdown', event => {
            if (event.button === 0 && event.pointerType !== 'touch') {
                begin = place(event);
                chart.svg.setPointerCapture(event.pointerId);
                event.preventDefault();
                chart.svg.focus();
            }
        });
        chart.svg.addEventListener('pointerup', event => {
            const first = begin, last = place(event);
            begin = null;
            if (first !== null && Math.abs(chart.x(first) - chart.x(last)) > 5) { zoom(first, last); }
        });
        chart.svg.addEventListener('pointercancel', () => { begin = null; });
        chart.svg.addEventListener('dblclick', () => zoom(full.first, full.last));
        chart.svg.addEventListener('keydown', event => {
            const change = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
            if (change) {
                const low = indexOf(view.first), high = Math.min(data.n - 1, indexOf(view.last));
                point(Math.max(low, Math.min(high, (cursor < 0 ? low - change : cursor) + change)));
                event.preventDefault();
            } else if (event.key === 'Escape') {
                zoom(full.first, full.last);
            }
        });
    }

    if (data.n > 0) {
        form.hidden = false;
        form.addEventListener('submit', event => {
            event.preventDefault();
            zoom(Number(from.value) || full.first, Number(to.value) || full.last);
        });
        document.getElementById('all').addEventListener('click', () => zoom(full.first, full.last));
        charts.forEach(listen);
        zoom(full.first, full.last);
    }

    /* Timeline ------------------------------------------------------------------------------------------ */

    const ROW = 18, GAP = 3, HEAD = 26;
    const LEAST = 0.4; /* pixels of a box */
    const lines = data.timeline;
    const now = { first: 0, last: lines ? lines.length : 0 };
    let stage = null;

    function htmlMake(parent, name, attributes, text) {
        const element = document.createElement(name);
        for (const key in attributes) { element.setAttribute(key, attributes[key]); }
        if (text !== undefined) { element.textContent = text; }
        parent.appendChild(element);
        return element;
    }

    function describe(span) {
        const [begin, length, busy, , name, unit, bytes] = span;
        return name + (unit && !name.includes(unit) ? ' ' + unit : '') + `, ${(length / 1000).toFixed(3)} ms` +
            (busy < length ? `, busy ${(busy / 1000).toFixed(3)} ms` : '') +
            (bytes > 0 ? `, ${(bytes / 1024).toFixed(1)} KiB` : '') + `, from ${(begin / 1000).toFixed(3)} ms`;
    }

    /* All of the name, the name without its type ("h.0" of "h.0 (block)"), the unit, or nothing. */
    function chooseText(span, width) {
        const fits = Math.floor((width - 6) / 5.6), name = span[4], type = name.indexOf(' (');
        if (name.length <= fits) { return name; }
        const other = span[3][0] === 'p' && type > 0 ? name.slice(0, type) : span[5];
        return other && other.length <= fits ? other : '';
    }

    function drawSpan(svg, span, y, hasText, drawn) {
        const [begin, length, busy, kind] = span, end = begin + length;
        if (end <= now.first || begin >= now.last) { return; }
        const x = stage.x(Math.max(begin, now.first));
        const width = Math.max(LEAST, stage.x(Math.min(end, now.last)) - x);
        if (kind !== drawn.kind) { drawn.to = 0; }
        if (x + width <= drawn.to + 0.05) { return; }
        drawn.to = x + width;
        drawn.kind = kind;
        const box = (name, from, wide) => { make(svg, 'rect', { class: name, x: from.toFixed(2), y, width: wide.toFixed(2), height: ROW }).span = span; };
        const full = busy * stage.scale;
        if (busy < length && full + 1.5 < width) {
            box(kind + ' hollow', x, width);
            if (end <= now.last) { box(kind, x + width - Math.max(LEAST, full), Math.max(LEAST, full)); }
        } else {
            box(kind, x, width);
        }
        const text = hasText ? chooseText(span, width) : '';
        if (text) { make(svg, 'text', { x: (x + 3).toFixed(2), y: y + ROW - 5 }, text); }
    }

    function drawRank(svg, rank, y) {
        make(svg, 'text', { class: 'r', x: 0, y: y + ROW - 5 }, 'rank ' + rank.rank);
        y += ROW + GAP;
        for (const row of rank.rows) {
            const most = Math.floor((stage.label - 8) / 5.6);
            const label = row.label.length > most ? '\u2026' + row.label.slice(1 - most) : row.label; /* the end tells lanes apart */
            const drawn = { to: 0, kind: '' };
            make(svg, 'text', { class: 's', x: 0, y: y + ROW - 5 }, label);
            for (const span of row.spans) { drawSpan(svg, span, y, row.text, drawn); }
            y += ROW + GAP;
        }
        return y + 12;
    }

    function drawTimeline() {
        const { svg } = stage, whole = stage.box.clientWidth || 600;
        stage.label = whole < 620 ? 84 : 168;
        stage.width = whole - stage.label - 4;
        stage.scale = stage.width / Math.max(1e-3, now.last - now.first);
        stage.x = instant => stage.label + (instant - now.first) * stage.scale;
        const height = HEAD + lines.ranks.reduce((sum, rank) => sum + (rank.rows.length + 1) * (ROW + GAP) + 12, 0);
        svg.replaceChildren();
        svg.setAttribute('viewBox', `0 0 ${whole} ${height}`);
        svg.setAttribute('width', whole);
        svg.setAttribute('height', height);
        svg.dataset.first = now.first;
        svg.dataset.last = now.last;
        const tick = chooseTick(now.last - now.first, Math.max(2, stage.width / 100));
        const begin = Math.ceil(now.first / tick) * tick;
        for (let i = 0; i < MOST_TICKS && begin + i * tick <= now.last; i++) {
            const instant = begin + i * tick, x = stage.x(instant).toFixed(2);
            make(svg, 'line', { class: 'l', x1: x, x2: x, y1: 16, y2: height });
            if (stage.x(instant) < whole - 44) { make(svg, 'text', { class: 's', x, y: 12 }, short(instant / 1000) + ' ms'); }
        }
        let y = HEAD;
        for (const rank of lines.ranks) { y = drawRank(svg, rank, y); }
        stage.select = make(svg, 'g', {});
        stage.from.value = (now.first / 1000).toFixed(3);
        stage.to.value = (now.last / 1000).toFixed(3);
    }

    function zoomTimeline(first, last) {
        const least = lines.length * 1e-6;
        now.first = Math.max(0, Math.min(first, last, lines.length - least));
        now.last = Math.min(lines.length, Math.max(first, last, now.first + least));
        drawTimeline();
    }

    function listenTimeline() {
        const { svg } = stage;
        let begin = null;
        const place = event => {
            const x = event.clientX - svg.getBoundingClientRect().left;
            return now.first + Math.max(0, Math.min(stage.width, x - stage.label)) / stage.scale;
        };
        svg.addEventListener('pointermove', event => {
            const span = event.target.span;
            stage.tip.textContent = span ? describe(span) : '';
            if (begin !== null) {
                const a = stage.x(begin), b = stage.x(place(event));
                stage.select.replaceChildren();
                make(stage.select, 'rect', { class: 'select', x: Math.min(a, b), y: 0, width: Math.abs(b - a), height: '100%' });
            }
        });
        svg.addEventListener('pointerdown', event => {
            if (event.button === 0 && event.pointerType !== 'touch') {
                begin = place(event);
                svg.setPointerCapture(event.pointerId);
                event.preventDefault();
            }
        });
        svg.addEventListener('pointerup', event => {
            const first = begin, last = place(event);
            begin = null;
            stage.select.replaceChildren();
            if (first !== null && Math.abs(last - first) * stage.scale > 5) { zoomTimeline(first, last); }
        });
        svg.addEventListener('pointercancel', () => { begin = null; });
        svg.addEventListener('dblclick', () => zoomTimeline(0, lines.length));
    }

    function makeTimeline(place) {
        const head = document.createElement('div');
        head.className = 'head';
        const title = htmlMake(head, 'span', {}, '');
        htmlMake(title, 'b', {}, `Step ${lines.step}`);
        title.append(`, ${(lines.length / 1000).toFixed(3)} ms`);
        const legend = htmlMake(head, 'ul', { class: 'legend' });
        for (const [kind, text] of [['p0', 'runs'], ['op', 'op'], ['wait', 'wait: exposed'], ['gather', 'gather'], ['reduce', 'reduction'], ['other', 'other']]) {
            const item = htmlMake(legend, 'li', {});
            htmlMake(item, 'span', { class: 'key ' + kind });
            item.append(text);
        }
        const form = htmlMake(head, 'form', { class: 'zoom', id: 'timeline-zoom' });
        const field = (label, id, name) => {
            const outer = htmlMake(form, 'label', {}, label + ' ');
            return htmlMake(outer, 'input', { type: 'number', step: 'any', id, 'aria-label': name });
        };
        stage = { from: field('ms', 'timeline-from', 'begin in milliseconds'), to: field('to', 'timeline-to', 'end in milliseconds') };
        htmlMake(form, 'button', { type: 'submit' }, 'Show');
        const all = htmlMake(form, 'button', { type: 'button' }, 'All');
        all.addEventListener('click', () => zoomTimeline(0, lines.length));
        form.addEventListener('submit', event => {
            event.preventDefault();
            zoomTimeline(Number(stage.from.value) * 1000, Number(stage.to.value) * 1000);
        });
        stage.box = document.createElement('div');
        stage.box.className = 'lanes';
        stage.svg = make(stage.box, 'svg', { class: 'lanes-plot', role: 'img', 'aria-label': 'Timeline of a step' });
        place.replaceChildren(head, stage.box);
        stage.tip = htmlMake(place, 'p', { class: 'tip' }, '');
        listenTimeline();
        drawTimeline();
    }

    if (lines) { makeTimeline(document.getElementById('timeline')); }

    /* The width of the window --------------------------------------------------------------------------- */

    let width = document.body.clientWidth;
    new ResizeObserver(() => {
        if (document.body.clientWidth !== width) {
            width = document.body.clientWidth;
            if (data.n > 0) { draw(); }
            if (lines) { drawTimeline(); }
        }
    }).observe(document.body);

    /* For tests: how many spans of a rank begin in its step. */
    window.shoalReport = Object.freeze({
        zoom, zoomTimeline, columns, stepAt,
        hover: step => point(nearest(step)),
        countSpans: number => lines.ranks.filter(rank => rank.rank === number).reduce((sum, rank) => sum +
            rank.rows.reduce((inner, row) => inner + row.spans.filter(span => span[0] >= rank.begin && span[0] < rank.end).length, 0), 0),
        readyMs: performance.now()
    });
})();
