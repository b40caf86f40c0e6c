"""torchelastic's error file: where a failing training process leaves its traceback for whoever supervises it."""

import json
import os
import time
import traceback
from collections.abc import Mapping

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def write_error(error: BaseException, environ: Mapping[str, str]) -> None:
    """Leave the error where the environment says; nothing when it says nothing, or somebody has written already."""
    path = environ.get(VARIABLE)
    if not path or os.path.exists(path):
        return
    content = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(error)),
                "timestamp": str(int(time.time())),
            },
        }
    }
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
    except OSError:
        pass  # the traceback is on stderr too; a full disk must not hide it behind a second error
