"""Trims what gen_golden.py --huge wrote to what the tests read.

Run:  python3 trim.py distributed_sampler.json
It writes torch.json here and sampler/testdata/torch.json: PyTorch's numbers, a
record a line.
"""
import json
import pathlib
import sys

here = pathlib.Path(__file__).parent


def write(path, sections):
    with open(path, "w") as f:
        f.write("{")
        for i, (name, records) in enumerate(sections.items()):
            lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in records)
            f.write(f'{"," * (i > 0)}\n"{name}": [\n{lines}\n]')
        f.write("\n}\n")


def pick(record, *keys):
    return {k: record[k] for k in keys if k in record}


def numbers(all):
    return {
        "meta": [pick(all["meta"], "torch", "sha256_of")],
        "mt19937": [pick(r, "seed_u64", "u32_first", "u32_sha256_1400_as_int64", "random64_first") for r in all["mt19937"]],
        "randperm": [pick(r, "n", "seed", "values", "sha256", "next_random64") for r in all["randperm"]],
        "randperm_consecutive": [all["randperm_consecutive"]],
        "randperm_huge": [pick(r, "n", "seed", "sha256", "next_random64") for r in all["randperm_huge"]],
    }


def dealt(all):
    """Of the small cases the first, the middle and the last rank; of the large ones, which are slow, one length and two worlds."""
    keep = []
    for r in all["distributed_sampler"]:
        n, world = r["n"], r["world"]
        if n <= 100 and r["rank"] not in (0, world // 2, world - 1):
            continue
        if n >= 1_000_000 and not (n == 1_281_167 and world in (3, 1024)):
            continue
        keep.append(pick(r, "n", "world", "rank", "seed", "epoch", "shuffle", "drop_last",
                         "total_size", "indices" if "indices" in r else "sha256"))
    return {"meta": [pick(all["meta"], "torch", "sha256_of")], "distributed_sampler": keep}


with open(sys.argv[1]) as f:
    all = json.load(f)
write(here / "torch.json", numbers(all))
write(here / "../../../sampler/testdata/torch.json", dealt(all))
