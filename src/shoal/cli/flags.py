"""A command line as a table of flags: both spellings, values from the environment, a script and its arguments.

torchrun's command line has two habits that this parser keeps. Every flag is spelled with dashes or underscores
and may come from `PET_<FLAG>` in the environment; and the first word that is no flag is the script, after which
nothing is ours: `run train.py --nnodes 7` gives `--nnodes 7` to the script.

Everything here is pure: words and an environment in, `Given` values out, `BadInput` for what is wrong.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.core.errors import BadInput

ENVIRONMENT_PREFIX = "PET_"
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""What torchrun handles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of the table. `metavar` None: it is given or not and takes no value."""

    name: str
    """With dashes, without the leading ones: `nproc-per-node`."""
    short: str | None = None
    metavar: str | None = None
    default: str | None = None
    help: str
    group: str
    inert: str | None = None
    """Why it has no effect here; it is accepted all the same, and named in a warning."""

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def spelling(self) -> str:
        return f"--{self.name}"

    @property
    def spellings(self) -> tuple[str, ...]:
        long = dict.fromkeys((self.spelling, f"--{self.key}"))
        return (*((f"-{self.short}",) if self.short else ()), *long)

    @property
    def variable(self) -> str:
        return self.variable_in(ENVIRONMENT_PREFIX)

    def variable_in(self, prefix: str) -> str:
        """The environment variable that stands for it among those with this prefix."""
        return prefix + self.key.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value that somebody gave, and where, so that a complaint can name the place."""

    text: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    values: Mapping[str, Given]
    """By `Flag.key`. What was not given is not in it."""
    script: str | None
    arguments: tuple[str, ...] = ()
    help: bool = False


def read(
    words: Sequence[str], environment: Mapping[str, str], flags: Sequence[Flag], prefix: str = ENVIRONMENT_PREFIX
) -> CommandLine:
    """Take a command line apart. A flag on it wins over its variable in the environment."""
    by_spelling = {spelling: flag for flag in flags for spelling in flag.spellings}
    values = _from_environment(environment, flags, prefix)
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        if word in ("-h", "--help"):
            return CommandLine(values=values, script=None, help=True)
        flag, value = _match(word, by_spelling)
        if flag.metavar is None:
            if value is not None:
                raise BadInput(f"{flag.spelling} takes no value, got {value!r}")
            value = "1"
        elif value is None:
            at += 1
            if at == len(words):
                raise BadInput(f"{flag.spelling} wants a value ({flag.metavar}), got none")
            value = words[at]
        values[flag.key] = Given(text=value, source=flag.spelling)
        at += 1
    script = words[at] if at < len(words) else None
    return CommandLine(values=values, script=script, arguments=tuple(words[at + 1 :]))


def _match(word: str, by_spelling: Mapping[str, Flag]) -> tuple[Flag, str | None]:
    """The flag of one word, and the value that is written into the same word (`--a=b`, `-r3`), if any."""
    name, equals, value = word.partition("=")
    if name in by_spelling:
        return by_spelling[name], value if equals else None
    if not word.startswith("--") and word[:2] in by_spelling and by_spelling[word[:2]].metavar is not None:
        return by_spelling[word[:2]], word[2:]
    raise BadInput(f"unknown flag {name}{_nearest(name, by_spelling)}; --help lists them all")


def _nearest(name: str, by_spelling: Mapping[str, Flag]) -> str:
    from difflib import get_close_matches  # only a mistake pays for it

    close = get_close_matches(name, by_spelling, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _from_environment(environment: Mapping[str, str], flags: Sequence[Flag], prefix: str) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for flag in flags:
        variable = flag.variable_in(prefix)
        text = environment.get(variable)
        if text is None:
            continue
        if flag.metavar is not None:
            given[flag.key] = Given(text=text, source=variable)
        elif _is_true(text, variable):
            given[flag.key] = Given(text="1", source=variable)
    return given


def _is_true(text: str, source: str) -> bool:
    match text.strip().lower():
        case "1" | "true" | "yes":
            return True
        case "0" | "" | "false" | "no":
            return False
    raise BadInput(f"{source} wants 1 or 0, got {text!r}")


def with_defaults(values: Mapping[str, Given], flags: Sequence[Flag]) -> dict[str, Given]:
    """What was given, and the table's defaults for what was not."""
    defaults = {flag.key: Given(text=flag.default, source=flag.spelling) for flag in flags if flag.default is not None}
    return defaults | dict(values)


# Values --------------------------------------------------------------------------------------------------


def as_int(given: Given, *, at_least: int) -> int:
    try:
        value = int(given.text)
    except ValueError:
        raise BadInput(f"{given.source} wants a whole number, got {given.text!r}") from None
    if value < at_least:
        raise BadInput(f"{given.source} wants a whole number of at least {at_least}, got {value}")
    return value


def as_seconds(given: Given, *, zero: bool = True) -> float:
    """A number of seconds, finite and not negative; above 0 unless `zero`."""
    wanted = f"a number of seconds {'of at least' if zero else 'above'} 0"
    try:
        value = float(given.text)
    except ValueError:
        raise BadInput(f"{given.source} wants {wanted}, got {given.text!r}") from None
    if not 0 <= value < float("inf") or (value == 0 and not zero):
        raise BadInput(f"{given.source} wants {wanted}, got {given.text}")
    return value


def as_pace(given: Given) -> int:
    """Seconds between two looks at a job that sizes itself, which is how long one sample of its speed takes."""
    from shoal.core.facts import LONGEST_SAMPLE, SHORTEST_SAMPLE  # only who says it pays for it

    seconds = int(given.text) if given.text.isascii() and given.text.isdigit() else 0
    if not SHORTEST_SAMPLE <= seconds <= LONGEST_SAMPLE or seconds % 2:
        raise BadInput(
            f"{given.source} wants an even number of seconds from {SHORTEST_SAMPLE} to {LONGEST_SAMPLE}, "
            f"got {given.text!r}"
        )
    return seconds


def as_mebibytes(given: Given) -> int:
    """Bytes, from a whole number of MiB."""
    return as_int(given, at_least=0) << 20


def as_choice(given: Given, choices: Sequence[str]) -> str:
    if given.text not in choices:
        raise BadInput(f"{given.source} wants one of {', '.join(choices)}, got {given.text!r}")
    return given.text


def as_list(given: Given) -> tuple[str, ...]:
    """Comma-separated; a doubled comma stands for one."""
    parts = given.text.replace(",,", "\0").split(",")
    return tuple(stripped for part in parts if (stripped := part.replace("\0", ",").strip()))


def as_signals(given: Given) -> tuple[signal.Signals, ...]:
    """Names of signals, comma-separated."""
    found: dict[signal.Signals, None] = {}
    for name in as_list(given):
        try:
            number = signal.Signals[name]
        except KeyError:
            raise BadInput(f"{given.source} wants names of signals (SIGTERM,SIGUSR1), got {name!r}") from None
        if number in (signal.SIGKILL, signal.SIGSTOP):
            raise BadInput(f"{given.source}: nobody can handle {name}")
        found[number] = None
    return tuple(found)
