#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints tables of what the benchmarks of this folder have written, beside PyTorch's.

    table.py FOLDER

Reads the files *.jsonl of a folder: kernels*.jsonl and, from PTX, jit*.jsonl (gpu_kernels), torch*.jsonl (torch_kernels.py, torch_host.py), host*.jsonl and
counted*.jsonl (gpu_host), load.NAME.jsonl (gpu_host --load yes). Where a program was run several times, the median of its runs
counts.
"""
import json
import math
import pathlib
import statistics
import sys

# The step's kernels: a context is made, a step is made. In milliseconds.
LOAD_BARS = {"cold": 500, "warm": 20}


def read(folder):
    lines = []
    # *.partial: of programs that failed.
    for path in sorted((*pathlib.Path(folder).glob("*.jsonl"), *pathlib.Path(folder).glob("*.partial"))):
        if path.suffix == ".partial":
            print(f"{path.stem}: failed, and what there is of it is below")
        for text in path.read_text().splitlines():
            try:
                lines.append(dict(json.loads(text), file=path.stem))
            except ValueError:
                print(f"{path.name}: a line is cut off", file=sys.stderr)
    return lines


def median(lines, key):
    values = [line[key] for line in lines if line.get(key) is not None]
    return statistics.median(values) if values else None


def show(number, form="{:.2f}"):
    return "-" if number is None else form.format(number)


def names_of(lines, *keys):
    return list(dict.fromkeys(tuple(line[k] for k in keys) for line in lines))


def verdict(line, runs):
    """Of the median of several runs."""
    if not line["bar"]:
        return "", ""
    ratio = median(runs, "ratio")
    bound = float(line["bar"].split()[2])
    is_met = ratio >= bound if line["bar"].startswith("at least") else ratio <= bound
    return f"{line['bar']}: {ratio:.3f}", "met" if is_met else "MISSED"


def print_kernels(lines, title, ours):
    theirs = [line for line in lines if line["bench"] == "gpu_torch"]
    if not ours:
        return
    n_runs = len({line["file"] for line in ours})
    print(f"{title}, us: medians of {ours[0]['samples']} samples and {n_runs} run(s); PyTorch's in turns with ours")
    if any(line["divisor"] > 1 for line in ours):
        print("Sizes were divided: these are no results.")
    print(f"{'':38} {'MB':>8} {'us':>9} {'TB/s':>6} {'%':>6} {'torch':>9} {'gain':>8}  bar")
    for (name,) in names_of(ours, "case"):
        runs = [line for line in ours if line["case"] == name]
        torch = median([line for line in theirs if line["case"] == name], "us")
        us = median(runs, "us")
        bar, met = verdict(runs[0], runs)
        wrong = "  WRONG BITS" if any(line["wrong"] for line in runs) else ""
        print(f"{name:38} {runs[0]['bytes'] / 1e6:8.1f} {us:9.2f} {median(runs, 'tbps'):6.3f} "
              f"{100 * median(runs, 'of_ceiling'):6.1f} {show(torch):>9} {show(torch and torch / us):>8}  {bar} {met}{wrong}")
    if title != "Kernels":
        theirs = []  # what is theirs alone stands below the first table
    for (name,) in names_of(theirs, "case"):
        if name not in {line["case"] for line in ours}:
            runs = [line for line in theirs if line["case"] == name]
            print(f"{name:38} {'':8} {'':9} {'':6} {'':6} {show(median(runs, 'us')):>9}  torch only: {runs[0]['how']}")
    for case, error in dict.fromkeys((line["case"], line["error"]) for line in theirs if line.get("error")):
        print(f"torch failed: {case}: {error}")
    print()


def print_host(lines):
    ours = [line for line in lines if line["bench"] == "gpu_host"]
    timed = [line for line in ours if not line["counted"]]
    counted = [line for line in ours if line["counted"]]
    theirs = [line for line in lines if line["bench"] == "gpu_torch_host"]
    if not ours:
        return
    print("Host time of a unit, forward + backward, us: CPU time and wall time; what it calls")
    print(f"{'':64} {'cpu':>8} {'wall':>8} {'launches':>9} {'copies':>7} {'allocs':>7} {'events':>7}  bar")
    keys = ("case", "tensors", "gradients", "zero_grad")
    for key in names_of(ours, *keys):
        runs = [line for line in timed if tuple(line[k] for k in keys) == key]
        counts = [line for line in counted if tuple(line[k] for k in keys) == key]
        name = f"{key[0]}, {key[1]} tensors, gradients {key[2]}, zero_grad {key[3]}"
        cpu, launches = median(runs, "cpu_us"), median(counts, "launches")
        bar = ""
        line = (runs or counts)[0]
        if key[1:] == (12, "stored", "outside"):
            bar = f"at most {line['bound_us']:.0f} us and {line['most_launches']} launches: "
            is_met = cpu is not None and launches is not None and cpu <= line["bound_us"] and launches <= line["most_launches"]
            bar += "met" if is_met else "MISSED"
        print(f"{name:64} {show(cpu):>8} {show(median(runs, 'wall_us')):>8} {show(launches):>9} {show(median(counts, 'copies')):>7} "
              f"{show(median(counts, 'allocations')):>7} {show(median(counts, 'events')):>7}  {bar}")
    for key in names_of(theirs, "case", "tensors"):
        runs = [line for line in theirs if (line["case"], line["tensors"]) == key]
        print(f"{f'FSDP2: {key[0]}, {key[1]} tensors':64} {median(runs, 'fsdp2_cpu_us'):8.2f} {median(runs, 'fsdp2_wall_us'):8.2f}"
              f"  (with the modules themselves {median(runs, 'cpu_us'):.2f} and {median(runs, 'wall_us'):.2f})")
    print()


def print_loads(lines):
    loads = [line for line in lines if line["bench"] == "gpu_load"]
    if not loads:
        return
    print("Loading the kernels of a first step, ms, without cuInit and context: images, finding functions, their first launches")
    for (file,) in names_of(loads, "file"):
        parts = {line["part"]: line for line in loads if line["file"] == file}
        name = file.split(".", 1)[-1]
        bound = next((ms for word, ms in LOAD_BARS.items() if name.startswith(word)), math.inf)
        sums = {}
        for what, wanted in (("step", ("context", "step")), ("with clipping and update", ("context", "step", "update"))):
            ms = sum(parts[p]["loading_ms"] for p in wanted if p in parts)
            sums[what] = f"{what} {ms:.2f} ({'met' if ms <= bound else 'MISSED'})"
        print(f"{name}: {', '.join(sums.values())}; at most {bound}")
        for part, line in parts.items():
            print(f"    {part:8} loading {line['loading_ms']:9.2f}: {line['images']} images {line['image_ms']:.2f}, "
                  f"{line['functions']} functions {line['function_ms']:.2f}, first launches {line['launch_ms']:.2f}; "
                  f"wall {line['first_ms']:.2f}, again {line['again_ms']:.2f}")
    print()


def print_large(lines):
    large = [line for line in lines if line["bench"] == "gpu_large"]
    if large:
        print("More than 4 GiB, beside the CPU's bits")
    for line in large:
        print(f"{line['case']:24} {line['in_bytes'] / 1e9:6.2f} GB in, {line['out_bytes'] / 1e9:6.2f} GB out: "
              f"{'WRONG' if line['wrong'] else 'equal'}")
    if large:
        print()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    results = read(sys.argv[1])
    kernels = [line for line in results if line["bench"] == "gpu_kernels"]
    print_kernels(results, "Kernels", [line for line in kernels if not line["file"].startswith("jit")])
    print_kernels(results, "Kernels from PTX", [line for line in kernels if line["file"].startswith("jit")])
    print_host(results)
    print_loads(results)
    print_large(results)
