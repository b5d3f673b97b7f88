"""Measures this machine's GPU from the sources alone, as `decodepool bench --shape llama-3-8b --device cuda` does.

    python -m bench.gpu.h200 --out DIRECTORY [--type Q8_0] [--type Q4_K_M] [--no-profile]

Writes DIRECTORY/h200-TYPE.json; where there is `nvidia-smi`, each row has the card's clock and power while it was timed
(`sm_mhz`, `power_watts`). It needs NumPy, cuda-bindings and NVRTC, and `sizing:kernels:worker:cli` on PYTHONPATH;
DECODEPOOL_COMMIT names the commit where the sources were copied without their checkout.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from decodepool_cli.subjects import measure_shape

from bench.gpu.card import watched_card
from bench.gpu.folders import made_folder

SHAPE = "llama-3-8b"


def shown(report: dict[str, Any]) -> str:
    """The figures in a few lines."""
    lines = [
        f"{report['model']}: reads {report['read_bytes_per_second'] / 1e12:.2f} TB/s, {report['memory']['planned']}"
    ]
    for row in report["decode"]:
        rate = f"{row['tokens_per_second']:8.1f} tok/s"
        times = f"{row['step_ms']:.3f} ms, host {row['host_ms']:.3f}, {row['floor_fraction']:.0%} of the floor"
        lines.append(f"{row['sessions']:4} x {row['context']:6} {row['kv_type']}: {rate}, {times}{card_shown(row)}")
    lines += [
        f"prompt of {row['context']}: {row['tokens_per_second']:.0f} tok/s{card_shown(row)}"
        for row in report["prefill"]
    ]
    lines += [f"sampled {row['sessions']}: {row['step_ms']:.3f} ms{card_shown(row)}" for row in report["sampled"]]
    lines += [f"not measured: {missing}" for missing in report.get("not_measured", [])]
    return "\n".join(lines)


def card_shown(row: dict[str, Any]) -> str:
    """What the card told while a row was timed, if anything."""
    return f", {row['sm_mhz']} MHz, {row['power_watts']} W" if "sm_mhz" in row else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=made_folder, required=True)
    parser.add_argument("--type", action="append", dest="types")
    parser.add_argument("--no-profile", action="store_true")
    options = parser.parse_args()
    with watched_card() as card:
        for weights in options.types or ["Q8_0"]:
            report = measure_shape(SHAPE, weights, is_profiled=not options.no_profile, watch=card.between)
            (options.out / f"h200-{weights}.json").write_text(json.dumps(report, indent=2) + "\n")
            print(shown(report), flush=True)


if __name__ == "__main__":
    main()
