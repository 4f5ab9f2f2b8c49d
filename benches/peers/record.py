"""Lines of the results, with the columns of the Rust bench."""

import csv
import datetime
import subprocess

COLUMNS = [
    "problem", "pass", "implementation", "dtype", "mode", "ms", "q1_ms", "q3_ms", "calls",
    "tflops", "gbps", "error", "note", "device", "driver", "date", "commit",
]


class Writer:
    """Writes a CSV row by row; a row is on disk when `write` returns."""

    def __init__(self, path, machine):
        self.file = open(path, "w", newline="", encoding="utf-8")
        self.csv = csv.DictWriter(self.file, COLUMNS, restval="", lineterminator="\n")
        self.csv.writeheader()
        self.machine = machine

    def write(self, **row):
        self.csv.writerow({**self.machine, **row})
        self.file.flush()
        names = ("problem", "pass", "implementation", "dtype", "mode")
        result = f"{row['ms']:.4f} ms" if "ms" in row else row["note"]
        print(*(row[name] for name in names), result, flush=True)

    def close(self):
        self.file.close()


def machine(device, version):
    """Columns that all rows share; `version` stands where the Rust bench has its commit."""
    name, driver = cpu() if device == "cpu" else gpu()
    date = datetime.date.today().isoformat()
    return {"device": name, "driver": driver, "date": date, "commit": version}


def gpu():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"]
    try:
        line = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "CUDA device", ""
    name, driver = line.splitlines()[0].split(",")
    return name.strip(), f"driver {driver.strip()}"


def cpu():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return (names[0], f"{len(names)} cores") if names else ("CPU", "")


def one_line(error):
    """The first line of an exception, with its kind."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    if isinstance(error, ValueError) and first.startswith("skipped"):
        return first
    return f"{type(error).__name__}: {first}"[:200]
