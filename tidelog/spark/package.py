"""This package as a job for `spark-submit`, for a cluster whose workers have what it needs and not itself.

    python -m tidelog.spark.package job
    spark-submit --master spark://host:7077 --py-files job/tidelog.zip job/submit.py pikiwi run --config source.toml

`submit.py` is the command `tidelog`, and takes its arguments; `tidelog.zip` goes to the workers with it.
"""

import shutil
import sys
import zipfile
from pathlib import Path

import tidelog

PACKAGE, PROGRAM = "tidelog.zip", "submit.py"


def make_package(folder: Path) -> None:
    root = Path(tidelog.__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / PACKAGE, "w", zipfile.ZIP_DEFLATED) as package:
        for path in sorted(root.rglob("*.py")):
            package.write(path, path.relative_to(root.parent))
    shutil.copyfile(root / "cli" / "__main__.py", folder / PROGRAM)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tidelog.spark.package FOLDER")
    make_package(Path(sys.argv[1]))
