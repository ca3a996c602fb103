"""A run in a process that has torch already is one of Python: arguments, folder, environment, streams, exit status."""

from pathlib import Path

import forked

SAYS = """
import os, sys
print(sys.argv, os.getcwd(), os.environ)
print("said", file=sys.stderr)
sys.exit(3)
"""


def test_a_run_is_one_of_python(tmp_path: Path) -> None:
    done = forked.python("-c", SAYS, "word", cwd=tmp_path, env={"A": "1"})
    assert done.returncode == 3
    assert done.stdout == f"['-c', 'word'] {tmp_path} environ({{'A': '1'}})\n"
    assert done.stderr == "said\n"


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import warnings\nwarnings.warn('seen')\n", encoding="utf-8")
    (tmp_path / "script.py").write_text("if __name__ == '__main__':\n    import beside\n", encoding="utf-8")
    done = forked.python(str(tmp_path / "script.py"), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("UserWarning: seen\n")


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    assert forked.python("-c", "import time; time.sleep(600)", cwd=tmp_path, timeout=0.5).returncode < 0
