"""Ctrl-C in scripts: one line, exit code 130, and nothing that is left."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from clusters import wait_until

WORKFLOWS = Path(__file__).parents[2] / "workflows"
#: ends as scripts do
ENDS = {
    "interrupt": "raise KeyboardInterrupt",
    # As when a compiled kernel has ignored an interrupt.
    "kernel": "raise SystemError('result with an exception set') from KeyboardInterrupt()",
    "error": "raise ValueError('wrong')",
}


def ended(how):
    done = subprocess.run(
        [sys.executable, "-c", f"import common\n{ENDS[how]}"], capture_output=True, text=True, check=False,
        cwd=WORKFLOWS, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=180,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("how", ["interrupt", "kernel"])
def test_an_interrupt_is_reported_by_one_line(how):
    assert ended(how) == (130, "interrupted\n")


def test_other_errors_are_reported_as_python_does():
    code, printed = ended("error")
    assert code == 1
    assert printed.startswith("Traceback")
    assert printed.endswith("\nValueError: wrong\n")
    assert "common.py" not in printed


@pytest.mark.slow
def test_an_interrupted_soak_is_no_wrong_leg_and_leaves_nothing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(WORKFLOWS / "soak.py"), "--minutes", "5"], env=environment, cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        # Tests that run in the background of a shell ignore interrupts, and so would this process.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: any(tmp_path.glob("soak-*/leg-0/*")))
            os.killpg(process.pid, signal.SIGINT)
            printed, reported = process.communicate(timeout=180)
        finally:
            process.kill()
    assert process.returncode == 130, reported
    assert "wrong" not in printed
    assert reported == "interrupted\n"
    assert not list(tmp_path.glob("soak-*"))
