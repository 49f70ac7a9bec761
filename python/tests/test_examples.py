"""The example of docs/python.md, and those of python/examples that need no GPU, run unchanged."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from conftest import finish, launcher, start

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
STENCIL = Path(__file__).parents[1] / "examples" / "stencil.py"
EXAMPLES = dict(re.findall(r"```python\n# (\w+\.py): (.*?)```", PAGE.read_text(), re.DOTALL))


@pytest.mark.parametrize("name", ["ring.py", "stencil.py"])
def test_example(name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    program.write_text(STENCIL.read_text() if name == "stencil.py" else "# " + EXAMPLES[name])
    (ended,) = finish([start([launcher(), "run", "-n", "4", "--", sys.executable, str(program)])])
    assert ended.returncode == 0, ended
    lines = sorted(ended.stdout.splitlines())
    assert lines == (
        [f"PE {me} of 4: [{(me - 1) % 4}. {(me - 1) % 4}. {(me - 1) % 4}.]" for me in range(4)]
        if name == "ring.py"
        else ["400 steps of 64 x 64 points on 4 PEs: as alone"]
    ), lines
