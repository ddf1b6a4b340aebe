"""The program that measures other allocators beside ours runs where none of them is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "tools" / "bundle" / "peers.py"
pytestmark = pytest.mark.skipif(not PEERS.exists(), reason="the bundle has it elsewhere")


def test_each_workload_has_a_figure(tmp_path):
    file = tmp_path / "peers.json"
    command = [sys.executable, str(PEERS), "--quick", "--json", str(file)]
    # A thousand live blocks of up to 4 MiB need more than the tests' simulated device has.
    environment = {**os.environ, "TENURE_SIM_MEMORY": "4GiB"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    everything = json.loads(file.read_text())
    ours = {(row["workload"], row["case"]): row["ns"] for row in everything["rows"] if row["allocator"] == "tenure"}
    assert {workload for workload, _ in ours} == {"pair", "churn", "threads", "buffer"}
    assert not [line for line in everything["failed"] if line.startswith("tenure")]
    assert all(ns > 0 for ns in ours.values())
    assert "threads, 16 threads" in done.stdout
