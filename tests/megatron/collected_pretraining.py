"""scripts/pretrain_gpt.py with the collecting runtime hooked in; every rank writes COLLECT_DIR/rank-<n>.json."""

import json
import os
import runpy
from pathlib import Path

from collector import installed  # beside this script

collector = installed()
runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "pretrain_gpt.py"), run_name="__main__")
(Path(os.environ["COLLECT_DIR"]) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(collector.report()))
