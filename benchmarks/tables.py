"""`secateur fit` with its defaults beside scikit-learn's estimators on real tables.

    python benchmarks/tables.py RESULTS.jsonl [--jobs 2] [--tables a,b] [--splits 3] \
        [--only ours|peers] [--summary FILE.md --plot FILE.png]

The tables come with packages on the Python package index (`table_sources.py`). Every table is
split at random into 80 % training rows and 20 % test rows, for seeds 0, 1 and 2; of classes, both
parts get the same shares. Test rows with a category that no training row has are left out, because
secateur refuses them. A contestant sees the same rows as every other one:

- `unpruned` and `pruned`: the model before and after pruning of `secateur fit TRAIN.csv --target
  TARGET --task TASK --held-out 0 --seed SPLIT`, on the training rows as a CSV file. Everything else
  has its default.
- `constant`: the mean of the training rows; of classes, their frequencies.
- `linear`: RidgeCV (penalties from 1e-3 to 1e3), or LogisticRegressionCV (scored by
  log-likelihood).
- `mlp`: MLPRegressor or MLPClassifier with their defaults (100 units), except that up to 5000
  epochs are allowed, so that training converges. Numeric targets are standardised.
- `forest`, `boosting`: random forest and histogram gradient boosting with their defaults.

Categories are one-hot encoded for scikit-learn, and inputs standardised. A peer's prediction of a
number is a Gaussian around what it predicts, whose variance is the mean square of residuals from
cross-validation on the training rows (10 folds below 100 rows, otherwise 5). Log-likelihoods are in
nats per test row, in the target's own units; a probability of a class counts as at least 1e-6, of
all contestants.

Every table is a process of its own, for ours and for the peers, which measures one split after the
other; only the first one compiles programs of its shape. Results are appended to
RESULTS.jsonl; a rerun measures what is not in it yet. Results of ours are kept apart by the source
code of secateur (--version gives them another label), those of the peers by scikit-learn's version.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from table_sources import PreparedTable, default_cache, prepare_tables

TRAINING_SHARE = 0.8
MIN_PROBABILITY = 1e-6
NORMAL_QUANTILE = 1.959964  # of a central interval of 95 %
OURS = ("unpruned", "pruned")
PEERS = ("constant", "linear", "mlp", "forest", "boosting")
GROUPS = {"ours": OURS, "peers": PEERS}


@dataclass(frozen=True)
class Job:
    """One table, one split, and ours or the peers."""

    table: str
    path: str
    target: str
    task: str
    split: int
    group: str
    version: str
    commit: str


# --- Rows -----------------------------------------------------------------------------------------


def split_rows(frame: pd.DataFrame, job: Job) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training rows and test rows."""
    from sklearn.model_selection import train_test_split

    labels = frame[job.target] if job.task == "classification" else None
    train, test = train_test_split(
        frame,
        train_size=round(TRAINING_SHARE * len(frame)),
        random_state=job.split,
        stratify=labels,
    )
    for name in text_columns(frame, job):
        test = test[test[name].isin(train[name].unique())]
    return train, test


def text_columns(frame: pd.DataFrame, job: Job) -> list[str]:
    """Return the inputs that hold categories."""
    inputs = frame.drop(columns=job.target)
    return [name for name in inputs if not pd.api.types.is_numeric_dtype(inputs[name])]


def measure_numbers(
    y: np.ndarray, mean: np.ndarray, log_density: np.ndarray, covered: np.ndarray
) -> dict[str, float]:
    return {
        "rmse": float(np.sqrt(np.mean(np.square(y - mean)))),
        "log_likelihood": float(np.mean(log_density)),
        "coverage": float(np.mean(covered)),
    }


def measure_classes(codes: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """`codes` are the columns of `probabilities` that hold the observed classes."""
    chosen = np.clip(probabilities[np.arange(len(codes)), codes], MIN_PROBABILITY, 1.0)
    return {
        "accuracy": float(np.mean(probabilities.argmax(axis=1) == codes)),
        "log_likelihood": float(np.mean(np.log(chosen))),
    }


# --- Ours -----------------------------------------------------------------------------------------


def run_ours(train: pd.DataFrame, test: pd.DataFrame, job: Job) -> Iterable[dict[str, Any]]:
    """Fit, prune and predict through the files that the command line reads and writes."""
    import secateur as sc
    from secateur.runs.controls import RunSettings
    from secateur.runs.folder import RunFolder
    from secateur.runs.table_fit import fit_table

    notes: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train.to_csv(folder / "train.csv", index=False)
        test.to_csv(folder / "test.csv", index=False)
        settings = RunSettings(task=job.task, seed=job.split, held_out=0.0)
        start = time.perf_counter()
        run = fit_table(
            folder / "train.csv",
            [job.target],
            settings,
            RunFolder(folder / "run"),
            progress=False,
            say=notes.append,
        )
        seconds = time.perf_counter() - start
        for contestant, path in (("unpruned", run.folder.unpruned), ("pruned", run.folder.model)):
            model = sc.load(path)
            yield {
                "contestant": contestant,
                **measure_ours(model, folder / "test.csv", job),
                "weights": int(model.live_weights),
                "free_energy": float(model.free_energy),
                "seconds": seconds,
                "notes": notes,
            }


def measure_ours(model: Any, path: Path, job: Job) -> dict[str, float]:
    from secateur.report.performance import find_class_probabilities
    from secateur.runs.table_model import find_encoding
    from secateur.tables import read_table

    encoding = find_encoding(model)
    frame = read_table(path, text=encoding.text_columns)
    prediction = model.predict(encoding.encode(frame).x)
    y = encoding.encode_targets(frame)
    assert y is not None  # the test rows have the target
    if job.task == "classification":
        return measure_classes(y, find_class_probabilities(prediction))
    low, high = prediction.interval(0.95)
    covered = (low <= y) & (y <= high)
    return measure_numbers(y, prediction.mean, prediction.log_density(y), covered)


# --- scikit-learn's -------------------------------------------------------------------------------


def make_peers(task: str, seed: int) -> dict[str, Any]:
    """Return scikit-learn's estimators, which take standardised inputs."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.preprocessing import StandardScaler

    if task == "classification":
        folds = StratifiedKFold(5, shuffle=True, random_state=seed)
        return {
            "constant": DummyClassifier(strategy="prior"),
            "linear": LogisticRegressionCV(cv=folds, scoring="neg_log_loss", max_iter=5000),
            "mlp": MLPClassifier(max_iter=5000, random_state=seed),
            "forest": RandomForestClassifier(random_state=seed),
            "boosting": HistGradientBoostingClassifier(random_state=seed),
        }
    return {
        "constant": DummyRegressor(),
        "linear": RidgeCV(alphas=np.logspace(-3, 3, 13)),
        "mlp": TransformedTargetRegressor(
            MLPRegressor(max_iter=5000, random_state=seed), transformer=StandardScaler()
        ),
        "forest": RandomForestRegressor(random_state=seed),
        "boosting": HistGradientBoostingRegressor(random_state=seed),
    }


def run_peers(train: pd.DataFrame, test: pd.DataFrame, job: Job) -> Iterable[dict[str, Any]]:
    from sklearn.compose import make_column_transformer
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    warnings.simplefilter("ignore", FutureWarning)
    for contestant, estimator in make_peers(job.task, job.split).items():
        encoder = make_column_transformer(
            (OneHotEncoder(drop="if_binary", sparse_output=False), text_columns(train, job)),
            remainder="passthrough",
        )
        model = make_pipeline(encoder, StandardScaler(), estimator)
        x, y = train.drop(columns=job.target), train[job.target]
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(x, y)
        seconds = time.perf_counter() - start
        yield {
            "contestant": contestant,
            **measure_peer(model, (x, y), test, job),
            "weights": count_numbers(model[-1]),
            "seconds": seconds,
            "notes": [str(warning.message) for warning in caught],
        }


def measure_peer(
    model: Any, training: tuple[pd.DataFrame, pd.Series], test: pd.DataFrame, job: Job
) -> dict[str, float]:
    from sklearn.base import clone
    from sklearn.model_selection import KFold, cross_val_predict

    x, y = test.drop(columns=job.target), test[job.target].to_numpy()
    if job.task == "classification":
        return measure_classes(np.searchsorted(model.classes_, y), model.predict_proba(x))
    folds = KFold(10 if len(training[1]) < 100 else 5, shuffle=True, random_state=job.split)
    encode, estimator = model[:-1], model[-1]  # a fold may miss a category, which encoding knows
    inside = cross_val_predict(
        clone(estimator), encode.transform(training[0]), training[1], cv=folds
    )
    variance = float(np.mean(np.square(training[1].to_numpy() - inside)))
    variance = max(variance, 1e-12 * float(np.var(training[1])))
    errors = y - model.predict(x)
    log_density = -0.5 * (np.square(errors) / variance + np.log(2 * np.pi * variance))
    covered = np.abs(errors) <= NORMAL_QUANTILE * np.sqrt(variance)
    return measure_numbers(y, y - errors, log_density, covered)


def count_numbers(estimator: Any) -> int | None:
    """Return the number of weights; of trees, the number of nodes."""
    fitted = getattr(estimator, "regressor_", estimator)  # of a TransformedTargetRegressor
    if hasattr(fitted, "coefs_"):
        return sum(array.size for array in (*fitted.coefs_, *fitted.intercepts_))
    if hasattr(fitted, "coef_"):
        return int(np.size(fitted.coef_) + np.size(fitted.intercept_))
    if hasattr(fitted, "estimators_"):
        return int(sum(tree.tree_.node_count for tree in fitted.estimators_))
    if hasattr(fitted, "_predictors"):
        return int(sum(len(tree.nodes) for trees in fitted._predictors for tree in trees))
    return len(getattr(fitted, "class_prior_", [0]))


# --- Jobs -----------------------------------------------------------------------------------------

RUNNERS: dict[str, Callable] = {"ours": run_ours, "peers": run_peers}


def run_job(job: Job) -> None:
    """Print a line for every contestant."""
    frame = pd.read_csv(job.path)
    train, test = split_rows(frame, job)
    for result in RUNNERS[job.group](train, test, job):
        head = {"table": job.table, "split": job.split, "contestant": result.pop("contestant")}
        head |= {"task": job.task, "version": job.version, "commit": job.commit}
        head |= {"training_rows": len(train), "test_rows": len(test)}
        print(json.dumps(head | result))
        sys.stdout.flush()


def start_jobs(jobs: list[Job], minutes: float, programs: Path) -> list[dict[str, Any]]:
    """Run the splits of a table in a process of their own, and return results or errors."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if jobs[0].group == "ours":  # an interrupted run need not compile again
        threads = {
            "JAX_COMPILATION_CACHE_DIR": str(programs.absolute()),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        }
    command = [sys.executable, __file__, "--jobs-of-a-table"]
    command.append(json.dumps([asdict(job) for job in jobs]))
    try:
        result = subprocess.run(
            command,
            env={**os.environ, **threads},
            capture_output=True,
            text=True,
            timeout=60 * minutes * len(jobs),
            check=False,
        )
        output, error = result.stdout, result.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired as timeout:
        output = timeout.stdout or ""
        output = output.decode() if isinstance(output, bytes) else output
        error = [f"took more than {minutes:g} minutes for each split"]
    lines = output.splitlines()
    results = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    found = {(result["split"], result["contestant"]) for result in results}
    wanted = [(job, contestant) for job in jobs for contestant in GROUPS[job.group]]
    missing = [(job, c) for job, c in wanted if (job.split, c) not in found]
    for job, contestant in missing:
        results.append(
            {
                "table": job.table,
                "split": job.split,
                "contestant": contestant,
                "task": job.task,
                "version": job.version,
                "commit": job.commit,
                "error": " ".join(error) or "no result",
            }
        )
    return results


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file; of several for one thing, the last."""
    if not path.exists():
        return []
    results: dict[tuple, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        result = json.loads(line)
        key = tuple(result[name] for name in ("table", "split", "contestant", "version"))
        results.pop(key, None)
        results[key] = result
    return list(results.values())


def run_jobs(
    jobs: list[Job], path: Path, *, programs: Path, side_by_side: int, minutes: float
) -> None:
    """Run what is not in the file yet, and append the results."""
    finished = {
        (r["table"], r["split"], r["version"], r["contestant"])
        for r in read_results(path)
        if "error" not in r
    }
    todo = [
        job
        for job in jobs
        if any((job.table, job.split, job.version, c) not in finished for c in GROUPS[job.group])
    ]
    by_table: dict[tuple[str, str], list[Job]] = {}
    for job in todo:
        by_table.setdefault((job.group, job.table), []).append(job)
    print(f"{len(todo)} of {len(jobs)} splits are to be measured", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(side_by_side) as pool, open(path, "a") as file:
        futures = [pool.submit(start_jobs, own, minutes, programs) for own in by_table.values()]
        for number, future in enumerate(as_completed(futures), 1):
            results = future.result()
            for result in results:
                file.write(json.dumps(result) + "\n")
            file.flush()
            for split in sorted({result["split"] for result in results}):
                own = [result for result in results if result["split"] == split]
                print(f"{number}/{len(futures)} {describe(own)}", flush=True)


def describe(results: list[dict[str, Any]]) -> str:
    first = results[0]
    parts = []
    for result in results:
        if "error" in result:
            parts.append(f"{result['contestant']}: {result['error']}")
        else:
            quality = result.get("rmse", result.get("accuracy"))
            parts.append(f"{result['contestant']} {quality:.4g} {result['log_likelihood']:.3f}")
    return f"{first['table']} {first['split']}: " + "; ".join(parts)


def find_versions() -> tuple[str, str]:
    """Return a hash of secateur's source files, which tells results apart, and its commit."""
    spec = importlib.util.find_spec("secateur")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("secateur is not installed")
    source = Path(next(iter(spec.submodule_search_locations)))
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*.py")):
        digest.update(str(path.relative_to(source)).encode() + path.read_bytes())
    command = ["git", "-C", str(source), "rev-parse", "--short", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"source {digest.hexdigest()[:8]}", result.stdout.strip() or version("secateur")


def make_jobs(
    tables: list[PreparedTable], groups: list[str], splits: int, label: str, commit: str
) -> list[Job]:
    versions = {"ours": label, "peers": f"scikit-learn {version('scikit-learn')}"}
    return [
        Job(
            prepared.table.name,
            str(prepared.path),
            prepared.table.target,
            prepared.table.task,
            split,
            group,
            versions[group],
            commit if group == "ours" else "",
        )
        for group in groups
        for split in range(splits)
        for prepared in tables
    ]


def main() -> None:
    if sys.argv[1:2] == ["--jobs-of-a-table"]:
        for job in json.loads(sys.argv[2]):
            run_job(Job(**job))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="file of JSON lines; a rerun goes on with it")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder for packages")
    parser.add_argument("--tables", help="names, with commas between them; by default all")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", choices=GROUPS, help="measure only ours or only the peers")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--minutes", type=float, default=30.0, help="maximum duration of a job")
    parser.add_argument("--version", help="label of ours; by default a hash of the source")
    parser.add_argument("--summary", type=Path, help="page to write (Markdown)")
    parser.add_argument("--note", default="", help="paragraph to put on the page")
    parser.add_argument("--plot", type=Path, help="picture to write")
    parser.add_argument("--no-run", action="store_true", help="only the page and the picture")
    options = parser.parse_args()
    source, commit = find_versions()
    label = options.version or source
    tables = prepare_tables(options.tables and options.tables.split(","), options.cache)
    if not options.no_run:
        groups = [options.only] if options.only else ["peers", "ours"]
        jobs = make_jobs(tables, groups, options.splits, label, commit)
        run_jobs(
            jobs,
            options.results,
            programs=options.cache / "programs",
            side_by_side=options.jobs,
            minutes=options.minutes,
        )
    if options.summary or options.plot:
        from table_page import write_page

        results = read_results(options.results)
        write_page(results, tables, label, options.summary, options.plot, options.note)


if __name__ == "__main__":
    main()
