"""`secateur fit` on a real table: from ten measurements to the progression of diabetes.

Run by `make demo`. The table comes with scikit-learn: 442 patients, ten measurements, and how far
the disease had progressed a year later. It is written to `demo/diabetes.csv`, and then

    secateur fit demo/diabetes.csv --target progression --out demo/run --force

trains linear, narrow and wide networks until their free energy levels off, removes every weight
whose removal lowers it, retrains the rest, repeats this until no removal lowers it, keeps the
network with the lowest free energy, and writes model and report to `demo/run`. More arguments of
`secateur fit` may follow: `python examples/demo.py --grow`.
"""

import sys
from pathlib import Path

from sklearn.datasets import load_diabetes

from secateur.cli import main

FOLDER = Path("demo")
# What scikit-learn calls s1 … s6.
BLOOD = ("cholesterol", "ldl", "hdl", "cholesterol_per_hdl", "log_triglycerides", "glucose")


def write_table(path):
    """Write the patients' table, in the measurements' own units."""
    frame = load_diabetes(as_frame=True, scaled=False).frame
    names = {f"s{number}": name for number, name in enumerate(BLOOD, 1)}
    names |= {"bmi": "body_mass_index", "bp": "blood_pressure", "target": "progression"}
    path.parent.mkdir(exist_ok=True)
    frame.rename(columns=names).to_csv(path, index=False)


if __name__ == "__main__":
    table = FOLDER / "diabetes.csv"
    write_table(table)
    words = ["fit", str(table), "--target", "progression", "--out", str(FOLDER / "run"), "--force"]
    sys.argv = ["secateur", *words, *sys.argv[1:]]
    main()
