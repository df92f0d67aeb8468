"""A source's settings on their way to Spark's workers: all that sources need, and no password."""

import json
from pathlib import Path
from typing import Any

from tidelog.pikiwi.config import FIELDS, Config
from tidelog.pikiwi.filter import read_specs

_LEFT_OUT = ("passwd", "filenum", "offset", "start_from_master", "initial_full_sync")  # for the receiver only


def settings_json(config: Config) -> str:
    """For the sources' option `settings`. Files of filters are read here: workers may not have them."""
    content: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(config, name)
        if name in _LEFT_OUT or value == FIELDS[name].default:
            continue
        content[name] = str(value.absolute()) if isinstance(value, Path) else value
    for name in ("wal_dir", "dump_path", "checkpoint_path"):
        content[name] = str(getattr(config, name).absolute())
    content["filter"] = read_specs(config.filter)
    return json.dumps(content)
