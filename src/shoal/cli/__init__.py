"""The command line: it parses, calls, prints. With the SDK it is the only reader of argv and environment.

`torchrun` and `flags` read words, `invocation` decides what one `shoal run` is, `devices` splits the machine,
`launch` and `supervisor` wire master, platform and agents together, `output` and `view` show it, `registry` remembers
it, `jobs` looks at it from another shell, `checkpoint` at what was saved. Importing this package imports none of
them: `shoal agent` must start fast, and `shoal --help` must not pay for what it does not use.
"""

import sys
from collections.abc import Sequence

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 well, 1 failed, 2 wrong input, 128 + n ended by signal n."""
    words = sys.argv[1:] if words is None else words
    from shoal.core.errors import BadInput, ShoalError

    try:
        return _dispatch(words)
    except BadInput as exc:
        return _complain(str(exc), EXIT_USAGE)
    except ShoalError as exc:
        return _complain(str(exc), EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain once more when it flushes at exit.
        sys.stderr.close()
        return EXIT_FAILED


def _dispatch(words: Sequence[str]) -> int:
    match list(words):
        case ["run", *rest]:
            from shoal.cli import run

            return run.main(rest)
        case ["agent", *rest]:
            from shoal.cli import agent

            return agent.main(rest)
        case ["master", *rest]:
            from shoal.cli import master

            return master.main(rest)
        case ["operator", *rest]:
            from shoal.cli import operator

            return operator.main(rest)
        case ["bring", *rest]:
            from shoal.cli import bring

            return bring.main(rest)
    from shoal.cli.app import app

    try:
        app(args=list(words), prog_name="shoal")
    except SystemExit as exc:  # how typer ends every command
        return exc.code if isinstance(exc.code, int) else 0 if exc.code is None else EXIT_FAILED
    return 0


def _complain(text: str, code: int) -> int:
    from shoal.cli.text import clean

    print(f"shoal: {clean(text)}", file=sys.stderr)
    return code
