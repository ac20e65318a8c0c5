"""`jaxvec search` and what else an index is good for: clusters, near-duplicates, other programs."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxvec.cli.index import Folder
from jaxvec.cli.options import Errors, Json, print_result, say
from jaxvec.errors import InputError

QUERIES = 1_024  # searched for together when they come from a stream
HANDOVER = (".parquet", ".npy", ".faiss", ".usearch")
Lines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def search(
    folder: Folder,
    queries: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUERY]...", help="What to look for; - reads one query a line; none: a prompt."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Answers to a query.")] = 5,
    errors: Errors = "strict",
    as_json: Lines = False,
) -> None:
    """Find the documents that are nearest to a query in meaning."""
    from jaxvec.search.index import Index
    from jaxvec.search.storage import check_count
    from jaxvec.textfiles import read_sentences

    check_count(k)
    prompted = not queries
    if prompted and not (sys.stdin and sys.stdin.isatty()):
        raise InputError("give a query, or - to read one query a line from standard input")
    if queries and len(queries) > 1 and "-" in queries:
        raise InputError("- reads the queries from standard input; give it alone")
    opened = Index.open(folder)
    if not len(opened):
        say(f"{folder} holds no documents: all were removed")
    stream: Iterable[str] = queries or ()
    if prompted:
        stream = _prompt()
    elif queries == ["-"]:
        stream = read_sentences("-", errors=errors)
    headed = not prompted and (queries == ["-"] or len(queries) > 1)
    iterator = iter(stream)
    while part := list(islice(iterator, 1 if prompted else QUERIES)):
        for query, hits in zip(part, opened.search(part, k), strict=True):
            _print_hits(query, hits, as_json, headed)


def cluster(
    folder: Folder,
    k: Annotated[int, typer.Option("-k", help="How many clusters.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the first centres.")] = 0,
    examples: Annotated[int, typer.Option(help="Documents shown of each cluster, the most typical.")] = 3,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Also write every document's cluster, one JSON object a line."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Group the documents of an index by meaning (k-means); the largest cluster comes first."""
    from jaxvec.search.cluster import k_means
    from jaxvec.search.index import Index
    from jaxvec.vectorfiles import check_target, new_file

    if examples < 0:
        raise InputError(f"--examples {examples}: expected 0 or more")
    if output is not None:
        check_target(output)
    opened = Index.open(folder)
    numbers = opened.valid.nonzero()[0].tolist()
    clusters = k_means(opened.found, k, seed=seed)
    if output is not None:
        with new_file(output) as file:
            for number, label in zip(numbers, clusters.labels.tolist(), strict=True):
                row = {"id": number, "cluster": label, "text": opened.text(number)}
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    found, lines = [], []
    for label, size in enumerate(clusters.sizes.tolist()):
        typical = [numbers[row] for row in clusters.nearest(label, examples)]
        texts = [opened.text(number) for number in typical]
        found.append({"size": size, "examples": texts, "ids": typical})
        lines += [f"cluster {label}: {size:,} documents", *(f"  {_one_line(text)}" for text in texts)]
    figures = {"clusters": found, "passes": clusters.passes, "output": output and str(output)}
    print_result(as_json, "\n".join(lines), figures)


def dedupe(
    folder: Folder,
    threshold: Annotated[float, typer.Option(help="Pairs of at least this cosine.")] = 0.95,
    drop: Annotated[
        bool, typer.Option("--remove", help="Take the later document of each pair out of the index.")
    ] = False,
    as_json: Lines = False,
) -> None:
    """List near-duplicates of an index: cosine, the two numbers, the two texts."""
    from jaxvec.search.dedupe import near_duplicates
    from jaxvec.search.index import Index

    opened = Index.open(folder)
    numbers = opened.valid.nonzero()[0]
    pairs, dropped = 0, set()
    for first, second, cosine in near_duplicates(opened.found, threshold):
        i, j = int(numbers[first]), int(numbers[second])
        pairs += 1
        if i not in dropped:  # what is kept stands for its duplicates, not for theirs
            dropped.add(j)
        texts = [opened.text(i), opened.text(j)]
        shown = "\t".join([f"{cosine:.4f}", str(i), str(j), *map(_one_line, texts)])
        print_result(as_json, shown, {"cosine": cosine, "ids": [i, j], "texts": texts})
    if drop and dropped:
        opened.remove(sorted(dropped))
    say(
        f"{pairs:,} pairs of {len(numbers):,} documents; "
        + (f"{len(dropped):,} removed" if drop else f"--remove would take out {len(dropped):,}")
    )


def handover(
    folder: Folder,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A name ending in .parquet, .npy, .faiss or .usearch.")
    ],
    kind: Annotated[str, typer.Option(help="For FAISS: flat, hnsw or ivf-pq.")] = "flat",
    raw_queries: Annotated[
        bool,
        typer.Option(
            "--raw-queries", help="For FAISS: the calibration goes in front, as transforms of the queries."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write an index for FAISS, usearch, or a vector database."""
    from jaxvec.search import handover as others
    from jaxvec.search.index import Index

    suffix = output.suffix.lower()
    if suffix not in HANDOVER:
        raise InputError(f"{output}: expected a name ending in {', '.join(HANDOVER)}")
    if suffix != ".faiss" and (kind != "flat" or raw_queries):
        raise InputError(f"{output}: --kind and --raw-queries are for FAISS; name the file .faiss")
    opened = Index.open(folder)
    if suffix == ".faiss":
        others.write_faiss(opened, output, kind, raw_queries=raw_queries)
    elif suffix == ".usearch":
        others.write_usearch(opened, output)
    else:
        others.write_documents(opened, output)
    print_result(
        as_json,
        f"{output}: {len(opened):,} documents × {opened.dim}",
        {"output": str(output), "documents": len(opened), "dim": opened.dim},
    )


def _prompt() -> Iterator[str]:
    while True:
        shown = "? " if sys.stdout.isatty() else ""  # input() would write it among the results
        if not shown:
            print("? ", end="", file=sys.stderr, flush=True)
        try:
            query = input(shown)
        except EOFError:
            print(file=sys.stderr)
            return
        if query.strip():
            yield query


def _print_hits(query: str, hits: Sequence[Any], as_json: bool, headed: bool) -> None:
    lines = [f"{hit.score:.3f}  {hit.id:>6}  {_one_line(hit.text)}" for hit in hits]
    if headed:
        lines = [query, *(f"  {line}" for line in lines)]
    found = [{"id": hit.id, "score": hit.score, "text": hit.text} for hit in hits]
    if lines or as_json:
        print_result(as_json, "\n".join(lines), {"query": query, "hits": found})


def _one_line(text: str) -> str:
    return " ".join(text.split())
